"""The life of a service process: open the port at once, load, serve, drain, stop. One way out for every cause."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import grpc
import typer
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from tandem.config import Config, LogConfig, RpcConfig, load_config
from tandem.errors import TandemError
from tandem.logs import set_up
from tandem.rpc.health import LIVENESS
from tandem.rpc.parsing import ParsedInside

_log = logging.getLogger(__name__)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def server_options(rpc: RpcConfig, max_receive_bytes: int) -> list[tuple[str, int]]:
    """Channel options of a server. Pings of our clients are allowed as often as they are sent."""
    return [
        ("grpc.max_receive_message_length", max_receive_bytes),
        ("grpc.max_send_message_length", rpc.max_message_bytes),
        ("grpc.keepalive_time_ms", int(rpc.keepalive_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(rpc.keepalive_timeout_s * 1000)),
        ("grpc.http2.ping_timeout_ms", int(rpc.keepalive_timeout_s * 1000)),  # else a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", int(rpc.keepalive_s * 500)),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.so_reuseport", 0),
    ]


class Server:
    """A gRPC server with health and reflection.

    Health "" and the named services turn SERVING only when the work can be done. LIVENESS is SERVING from the start,
    until something stands still that should go on: a process that says otherwise, or nothing, should be replaced.
    """

    def __init__(self, options: Sequence[tuple[str, int]], service_names: Sequence[str]) -> None:
        self.grpc = grpc.aio.server(interceptors=[ParsedInside()], options=list(options))
        self._names = ("", *service_names)
        self._health = health_aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        listed = (*service_names, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(listed, self.grpc)
        self._is_stopping = False
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Opens the port (0: any free one; see `port`), NOT_SERVING. Raises OSError if it is taken."""
        try:
            self.port = self.grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {host}:{port}") from error
        await self.set_serving(False)
        await self.set_alive(True)
        await self.grpc.start()

    async def set_serving(self, serving: bool) -> None:
        """Once it stops it serves no more."""
        for name in self._names:
            await self._health.set(name, SERVING if serving and not self._is_stopping else NOT_SERVING)

    async def set_alive(self, alive: bool) -> None:
        await self._health.set(LIVENESS, SERVING if alive else NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Refuses new calls, gives running ones `grace_s` seconds, and closes."""
        self._is_stopping = True
        await self.set_serving(False)  # but it lives, while it finishes what runs
        await self.grpc.stop(grace_s)


@contextlib.asynccontextmanager
async def stop_signal(stop_with_parent: bool) -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM, SIGINT, or the parent's end (end of file on standard input) sets."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if stop_with_parent:
        _watch_parent(_PARENT_GRACE_S)
    yield stopped


_PARENT_GRACE_S = 2.0


def _watch_parent(grace_s: float) -> None:
    """Ends this process when standard input closes, that is, when the parent is gone, whatever killed it.

    A thread, not the event loop: loading a model may block that. First politely; by force if that takes too long.
    """

    def wait() -> None:
        with contextlib.suppress(OSError):
            while os.read(sys.stdin.fileno(), 4096):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace_s)
        os._exit(1)

    threading.Thread(target=wait, name="parent-watch", daemon=True).start()


T = TypeVar("T")


def beside_the_loop(call: Callable[[], T]) -> asyncio.Future[T]:
    """What `call` returns or raises, run on a daemon thread: a process that is asked to stop does not wait for it."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except BaseException as error:
            loop.call_soon_threadsafe(settle, outcome.set_exception, error)
        else:
            loop.call_soon_threadsafe(settle, outcome.set_result, result)

    def settle(setter: Callable[[Any], None], value: Any) -> None:
        if not outcome.done():
            setter(value)

    threading.Thread(target=run, name="beside-the-loop", daemon=True).start()
    return outcome


async def load_or_stop(load: Callable[[], T], stopped: asyncio.Event) -> T | None:
    """What `load` returns; None if `stopped` comes first. Raises what `load` raises.

    What is loaded stays: the garbage collector, which would stop the service to walk all of it, leaves it alone.
    """
    loading = beside_the_loop(load)
    stopping: asyncio.Future[Any] = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({loading, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not loading.done():
        return None
    gc.collect()
    gc.freeze()
    return loading.result()


Serve = Callable[[Config, asyncio.Event], Coroutine[Any, Any, None]]


def service_main(serve: Serve) -> None:
    """The command line of a service: `--config FILE`, `--stop-with-parent`. Exits 1 for an error of ours."""

    def run(
        config: Annotated[Path | None, typer.Option(help="Settings in YAML.")] = None,
        stop_with_parent: Annotated[bool, typer.Option(help="Leave when standard input ends.")] = False,
    ) -> None:
        set_up(LogConfig())
        try:
            settings = load_config(config)
            set_up(settings.log)
            asyncio.run(_run(serve, settings, stop_with_parent))
        except (TandemError, OSError) as error:
            _log.error("%s", error)
            raise SystemExit(1) from error

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(run)
    app()


async def _run(serve: Serve, config: Config, stop_with_parent: bool) -> None:
    async with stop_signal(stop_with_parent) as stopped:
        await serve(config, stopped)
