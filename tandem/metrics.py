"""Metrics over HTTP, on a port of their own in every service."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, start_http_server

from tandem.errors import ConfigError

disable_created_metrics()

ROUND_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2.5)  # seconds, of one round
REQUEST_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)  # seconds, of one request


@contextlib.contextmanager
def metrics_served(registry: CollectorRegistry, host: str, port: int) -> Iterator[int]:
    """Serves `registry` on /metrics while entered, with the process's CPU time and memory; yields the port (0: any free
    one). Raises ConfigError if taken.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigError(f"metrics_port: cannot listen on {host}:{port}: {error.strerror}") from error
    process = ProcessCollector(registry=registry)
    try:
        yield server.server_port
    finally:
        registry.unregister(process)
        server.shutdown()
        server.server_close()
        thread.join()
