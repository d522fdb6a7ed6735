"""Processes of the tests: a target worker with its ranks, and a Ray cluster; all gone at the end, whatever happened."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

START_S = 90.0


def eventually(holds: Callable[[], Any], within_s: float, what: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"did not come true in {within_s} s: {what()}"
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


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

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def tail(self) -> str:
        return self.text()[-3000:]

    def kill(self) -> None:
        assert self.popen is not None and self.popen.stdin is not None
        self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()

    def stop(self, within_s: float) -> int:
        """Its exit code."""
        assert self.popen is not None and self.popen.stdin is not None
        self.popen.terminate()
        code = self.popen.wait(within_s)
        self.popen.stdin.close()
        return code


class RayHead(Process):
    """`ray start --head` in the foreground, with a token of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._scratch = tempfile.TemporaryDirectory(prefix="ray-")  # sockets need a short path
        token = folder / "token"
        token.write_text("0123456789abcdef" * 4)
        environment = {
            **os.environ,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        ports = [f"--port={self.port}", f"--ray-client-server-port={free_port()}", "--dashboard-agent-listen-port=0"]
        ports += ["--min-worker-port=0", "--max-worker-port=0"]
        size = ["--num-cpus=2", "--num-gpus=0", "--object-store-memory=80000000"]
        place = ["--include-dashboard=false", f"--temp-dir={self._scratch.name}", "--block"]
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", *ports, *size, *place]
        super().__init__(command, folder / "ray.log", environment)

    def __enter__(self) -> RayHead:
        self.start()
        eventually(lambda: "Ray runtime started" in self.text(), START_S, self.tail)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = below(self.pid) | {self.pid}
        try:
            self.stop(20.0)
        finally:
            for pid in filter(alive, processes):
                os.kill(pid, signal.SIGKILL)
            self._scratch.cleanup()


class Worker(Process):
    """A target worker as a supervisor runs it."""

    def __init__(self, folder: Path, model: str, dtype: str, head: RayHead | None = None, **target: Any) -> None:
        self.port = free_port()
        self._num_rebuilt = 0
        settings = {"port": self.port, "metrics_port": free_port(), "threads": 2, "cpus_per_rank": 0.25, **target}
        if head is not None:
            settings.setdefault("ray_address", f"127.0.0.1:{head.port}")
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
        eventually(lambda: self.num_starts >= times or not alive(self.pid), START_S, self.tail)
        assert self.num_starts >= times, self.tail()

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes = below(self.pid)
        self.kill()
        eventually(lambda: not any(map(alive, processes)), 15.0, self.tail)
