"""A group of ranks that broke is not repaired: the worker process becomes a new one, in place.

The process id and standard input stay, so that whoever started and watches the worker need not act. The kernel closes
everything else at once: the port (no health, no new calls), all streams (their calls end as "worker lost"), the
connection to Ray (which ends the ranks) and, by the end of the thread that started it, a Ray of our own.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import NoReturn, Protocol

MAX_ATTEMPTS = 5  # in a row without becoming ready
_ATTEMPTS = "_TANDEM_REBUILDS"
_log = logging.getLogger(__name__)


class Stopped(Protocol):
    """What asyncio.Event has."""

    def is_set(self) -> bool: ...


class Rebuild:
    """The one way out of a broken group. `stopped`: a process that is to end ends."""

    def __init__(self, stopped: Stopped) -> None:
        self._stopped = stopped
        self._lock = threading.Lock()

    def __call__(self, reason: str) -> NoReturn:
        """From any thread; the first caller's reason is told."""
        if self._lock.acquire(blocking=False):
            # Never on the thread that started Ray: its end is what ends a Ray of our own.
            threading.Thread(target=self._leave, args=(reason,), name="rebuild").start()
        while True:
            threading.Event().wait()

    def give_up(self, reason: str) -> NoReturn:
        """Where a new attempt would end like this one."""
        _log.error("%s", reason)
        os._exit(1)

    def _leave(self, reason: str) -> None:
        num_attempts = int(os.environ.get(_ATTEMPTS, "0")) + 1
        if self._stopped.is_set() or num_attempts > MAX_ATTEMPTS:
            self.give_up(f"the group of ranks is lost: {reason}")
        _log.error("the group of ranks is lost, it is built anew: %s", reason)
        os.environ[_ATTEMPTS] = str(num_attempts)
        replace_process()


def replace_process() -> NoReturn:
    """This process, from its first line on."""
    sys.stdout.flush()
    sys.stderr.flush()
    for name in os.listdir("/proc/self/fd"):  # gloo's sockets would stay open
        with suppress(OSError):
            os.set_inheritable(int(name), int(name) <= 2)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def reset_attempts() -> None:
    """Says that this attempt has led to a worker that serves."""
    os.environ.pop(_ATTEMPTS, None)


def reap_children() -> None:
    """Waits for the processes of the group before, which are this process's children and nobody else's."""
    with suppress(ChildProcessError):
        while _ATTEMPTS in os.environ and os.waitpid(-1, os.WNOHANG)[0]:
            pass
