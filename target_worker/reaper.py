"""python reaper.py PID:START...: when standard input ends, kills these processes, if they are still the same.

A Ray of our own must not outlive the worker, however that ended. Ray sees to most of it by itself; its agents would
stay for another minute, with 180 MB.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress


def start_reaper(parent: int) -> subprocess.Popen[bytes]:
    """A reaper of all that `parent` has started; it acts when its standard input ends, as it does with us."""
    started = [f"{pid}:{_stat(pid)[1]}" for pid in descendants(parent)]
    command = [sys.executable, "-I", "-S", __file__, *started]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def descendants(parent: int) -> list[int]:
    """Children, their children and so on."""
    parent_of = {pid: _stat(pid)[0] for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
    found: list[int] = []
    newest = [parent]
    while newest:
        newest = [pid for pid, above in parent_of.items() if above in newest]
        found += newest
    return found


def _stat(pid: int) -> tuple[int, str]:
    """Parent, and when it started; (0, "") of a process that is gone."""
    with suppress(OSError), open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
        return int(fields[1]), fields[19]
    return 0, ""


def main(started: list[str]) -> None:
    sys.stdin.buffer.read()
    for pid, _, start in (each.partition(":") for each in started):
        if start and _stat(int(pid))[1] == start:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
