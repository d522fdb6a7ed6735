"""python keeper.py PID MARK: when standard input ends, kills every process with MARK in its environment, except PID.

A Ray of our own must not outlive the worker, however that ended. Ray sees to most of it by itself; its agents stay for
another minute, and 180 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

_LIMIT_S = 10.0


def keep(mark: str) -> subprocess.Popen[bytes]:
    """Starts a keeper for this process. It acts when its standard input is closed, or when this process is gone."""
    command = [sys.executable, "-I", "-S", __file__, str(os.getpid()), mark]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def marked(mark: str, spared: int) -> list[int]:
    """The processes to kill."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/environ", "rb") as environment:
            if mark.encode() in environment.read() and int(name) != spared:
                found.append(int(name))
    return found


def main(spared: str, mark: str) -> None:
    sys.stdin.buffer.read()
    deadline = time.monotonic() + _LIMIT_S
    while (pids := marked(mark, int(spared))) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
