"""Starts the service processes of one machine, waits for their health, watches them and stops them.

A child holds the reading end of a pipe as its standard input and leaves when that ends, so that even `kill -9` of this
process leaves none behind.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.errors import TandemError

POLL_S = 0.1
CHECK_S = 1.0  # longest wait for one answer about health
LOADING_GRACE_S = 2.0  # for services that were never ready: nothing runs on them, and loading may not be interruptible
NUM_LOG_LINES = 20

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
STARTING, LOADING, READY = "starting", "loading", "ready"

Report = Callable[[str, str], None]  # (name of a service, what it is doing)


@dataclass(frozen=True, slots=True)
class Service:
    """A process to run. When a `vital` one ends, and none of its role is left, the others end with it."""

    name: str
    command: tuple[str, ...]
    address: str
    vital: bool = True
    role: str = ""  # services of one role do the same; of no role: nothing else does


class ServiceFailure(TandemError):
    """A service does not do its part; its log is named in the message."""


class ServiceExited(ServiceFailure):
    """It ended by itself; the message carries its last log lines."""


class ServiceNotReady(ServiceFailure):
    """It runs, but did not become healthy in time."""


class Supervisor:
    """Owns the processes of `services`, which start in this order. As a context it stops them at the end."""

    def __init__(
        self,
        services: Sequence[Service],
        log_folder: Path,
        environment: Mapping[str, str] | None = None,
        grace_s: float = 12.0,
    ) -> None:
        self.services = tuple(services)
        self._log_folder = log_folder
        self._environment = environment
        self._grace_s = grace_s
        self._ready = False
        self._running: dict[Service, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pids(self) -> dict[str, int]:
        """The processes that were started and not stopped, by the name of their service."""
        return {service.name: process.pid for service, process in self._running.items()}

    def start(self) -> None:
        for service in self.services:
            self._running[service] = self._spawn(service)

    def wait_ready(self, report: Report, timeout_s: float = 600.0) -> None:
        """Returns once all are healthy. Raises ServiceExited when one ends first, else ServiceNotReady in the end."""
        deadline = time.monotonic() + timeout_s
        probes = {service: _Probe(service.address) for service in self.services}
        try:
            while unready := _poll(probes, report):
                self._raise_if_exited()
                if time.monotonic() > deadline:
                    raise ServiceNotReady(f"{unready} not ready after {timeout_s:.0f} s; log in {self._log_folder}")
                time.sleep(POLL_S)
            self._ready = True
        finally:
            for probe in probes.values():
                probe.close()

    def watch(self, on_loss: Callable[[ServiceExited], None], until: Callable[[], bool]) -> None:
        """Runs until `until()`. Raises when a vital service ends; `on_loss` is told of the others, once each."""
        while not until():
            for service in self._exited():
                failure = self._failure(service)
                if service.vital and not self._has_another(service):
                    raise failure
                _close(self._running.pop(service))
                on_loss(failure)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """The only way down, safe to call twice: ask, wait within a bound, then kill.

        The service started last goes first: it serves what still runs by means of the others.
        """
        last_first = list(reversed(self._running))
        for batch in (last_first[:1], last_first[1:]):
            self._end([self._running.pop(service) for service in batch])

    def _spawn(self, service: Service) -> subprocess.Popen[bytes]:
        with self._log_path(service).open("wb") as log:
            return subprocess.Popen(
                service.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # Out of the terminal's foreground group: Ctrl-C reaches us alone, and we stop them in order.
                process_group=0,
            )

    def _end(self, processes: Iterable[subprocess.Popen[bytes]]) -> None:
        processes = list(processes)
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + (self._grace_s if self._ready else min(self._grace_s, LOADING_GRACE_S))
        for process in processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            _close(process)

    def _exited(self) -> list[Service]:
        return [service for service, process in self._running.items() if process.poll() is not None]

    def _has_another(self, service: Service) -> bool:
        alike = (each for each in self._running if each is not service and each.role == service.role)
        return bool(service.role) and any(self._running[each].poll() is None for each in alike)

    def _raise_if_exited(self) -> None:
        for service in self._exited():
            raise self._failure(service)

    def _failure(self, service: Service) -> ServiceExited:
        ending = _ending(self._running[service].returncode)
        path = self._log_path(service)
        return ServiceExited("\n".join([f"{service.name} {ending}; end of its log {path}:", *_last_lines(path)]))

    def _log_path(self, service: Service) -> Path:
        return self._log_folder / f"{service.name.replace(' ', '-')}.log"


class _Probe:
    """Asks one service for its health."""

    def __init__(self, address: str) -> None:
        # A service opens its port within a second or two: retry soon, and never through a proxy.
        options = (("grpc.max_reconnect_backoff_ms", 500), ("grpc.enable_http_proxy", 0))
        self._channel = grpc.insecure_channel(address, options)
        self._stub = health_pb2_grpc.HealthStub(self._channel)
        self._reached = False

    def state(self) -> str:
        try:
            reply = self._stub.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_S)
        except grpc.RpcError:
            return LOADING if self._reached else STARTING
        self._reached = True
        return READY if reply.status == health_pb2.HealthCheckResponse.SERVING else LOADING

    def close(self) -> None:
        self._channel.close()


def _poll(probes: dict[Service, _Probe], report: Report) -> str:
    """The names of the services that are not ready yet."""
    states = {service.name: probe.state() for service, probe in probes.items()}
    for name, state in states.items():
        report(name, state)
    return ", ".join(name for name, state in states.items() if state != READY)


def _close(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin:
        process.stdin.close()


def _ending(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _last_lines(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines()[-NUM_LOG_LINES:]


class StopSignal:
    """SIGINT and SIGTERM, of which only the first one counts, as long as this context lasts.

    What follows it is the shutdown, which is bounded; a second Ctrl-C must not cut it short and leave processes.
    """

    def __init__(self) -> None:
        self.seen = False
        self._raises = True
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignal:
        self._before = {each: signal.signal(each, self._receive) for each in STOP_SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, previous in self._before.items():
            signal.signal(each, previous)

    def only_note(self) -> None:
        """From now on it sets `seen` and raises no KeyboardInterrupt, which could get lost in some destructor."""
        self._raises = False

    def _receive(self, number: int, frame: FrameType | None) -> None:
        for each in STOP_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        self.seen = True
        if self._raises:
            raise KeyboardInterrupt
