"""Processes of the tests: a target worker with its ranks, and a Ray cluster; all gone at the end, whatever happened."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

# Nobody waits that long on a machine with nothing else to do; these bound a test that fails.
START_S = 400.0
END_S = 240.0


def eventually(holds: Callable[[], Any], within_s: float, what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come true in {within_s} s: {what()}"
        time.sleep(0.05)


def free_port() -> int:
    """One that stays free until it is wanted: of those that neither the kernel nor Ray hands out by itself."""
    for port in random.sample(range(20_000, 32_000), 100):
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            return port
    raise AssertionError("no free port")


def alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def below(pid: int) -> set[int]:
    """A process's children, their children and so on."""
    parents: dict[int, int] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


class Process:
    """A command that ends with its context."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.command, self.log, self.environment = command, log, environment
        self.popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=self.environment
            )

    @property
    def pid(self) -> int:
        assert self.popen is not None
        return self.popen.pid

    @property
    def ended(self) -> bool:
        """To be asked of a worker: while one replaces itself, its process looks dead in /proc for a moment."""
        assert self.popen is not None
        return self.popen.poll() is not None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        return self.text()[-3000:]

    def kill(self) -> None:
        assert self.popen is not None and self.popen.stdin is not None
        self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()

    def stop(self) -> int:
        """Its exit code."""
        assert self.popen is not None
        self.popen.terminate()
        return self.exit_code()

    def exit_code(self) -> int:
        """Once it has ended."""
        assert self.popen is not None and self.popen.stdin is not None
        code = self.popen.wait(START_S)
        self.popen.stdin.close()
        return code


TOKEN = "0123456789abcdef" * 4


def token(value: str) -> dict[str, str]:
    """Environment of a process that offers this token to Ray."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": value}


FREE = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); print(ray.available_resources().get(sys.argv[2]))"


def free(address: str, resource: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Asks a Ray cluster, as anybody could, how much of a resource nobody holds."""
    command = [sys.executable, "-c", FREE, address, resource]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=START_S)


class RayHead(Process):
    """`ray start --head` in the foreground, with a token of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._scratch = tempfile.TemporaryDirectory(prefix="ray-")  # sockets need a short path
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **token(TOKEN)}
        ports = [f"--port={self.port}", f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"]
        ports += ["--min-worker-port=0", "--max-worker-port=0"]
        size = ["--num-cpus=2", "--num-gpus=0", f"--memory={1 << 30}", "--object-store-memory=80000000"]
        place = ["--include-dashboard=false", f"--temp-dir={self._scratch.name}", "--block"]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *ports, *size, *place]
        super().__init__(command, folder / "ray.log", environment)

    def __enter__(self) -> RayHead:
        self.start()
        eventually(lambda: "Ray runtime started" in self.text(), START_S, self.tail)
        return self

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def free_cpus(self) -> float:
        return float(free(self.address, "CPU", self.environment).stdout)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = below(self.pid) | {self.pid}
        try:
            self.stop()
        finally:
            for pid in filter(alive, processes):
                os.kill(pid, signal.SIGKILL)
            self._scratch.cleanup()


class Worker(Process):
    """A target worker as a supervisor runs it."""

    def __init__(self, folder: Path, model: str, dtype: str, head: RayHead | None = None, **target: Any) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        settings = {"port": self.port, "metrics_port": self.metrics_port, "threads": 2, "cpus_per_rank": 0.25, **target}
        if head is not None:
            settings.setdefault("ray_address", head.address)
        tree = {"model": {"target": model, "dtype": dtype}, "target": settings}
        if "device" in target:
            tree["model"]["device"] = settings.pop("device")
        config = folder / f"{self.port}.yaml"
        config.write_text(yaml.safe_dump(tree))
        command = [sys.executable, "-P", "-m", "target_worker", "--config", str(config), "--stop-with-parent"]
        super().__init__(command, folder / f"{self.port}.log", dict(head.environment if head else os.environ))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def num_starts(self) -> int:
        """How often it has become ready."""
        return self.text().count("INFO serving ")

    @property
    def losses(self) -> list[str]:
        return re.findall(r"the group of ranks is lost, it is built anew: (.*)", self.text())

    def rank(self, number: int) -> int:
        """Its process, of the group that was built last."""
        return int(re.findall(rf"rank {number} of \d+ is process (\d+)", self.text())[-1])

    def wait_started(self, times: int) -> None:
        eventually(lambda: self.num_starts >= times or self.ended, START_S, self.tail)
        assert self.num_starts >= times, self.tail()

    def is_serving(self) -> bool:
        """As a probe sees it."""
        request = health_pb2.HealthCheckRequest(service="tandem.v1.Target")
        with grpc.insecure_channel(self.address) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=END_S)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.UNAVAILABLE
                return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    def num_rows(self) -> int:
        """Rows of all its forward passes."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=END_S) as page:
            return int(float(re.findall(r"^tandem_target_rows_total (\S+)$", page.read().decode(), re.M)[0]))

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = below(self.pid)
        self.kill()
        eventually(lambda: not any(map(alive, processes)), END_S, self.tail)
