"""Targets that go no faster than the client reads: a request that is to be struck somewhere still stands there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_LONGEST_S = 30.0


class Lockstep:
    """While it holds, no target computes before the client has all that was answered, nor once it has enough."""

    def __init__(self) -> None:
        self._may_step = threading.Event()
        self._may_step.set()
        self._lock = threading.Lock()
        self._until: int | None = None  # tokens that the client is to have; None: nobody is held back

    @contextlib.contextmanager
    def until(self, num_tokens: int) -> Iterator[None]:
        """Holds until left; from `num_tokens` on at the client nothing moves."""
        self._until = num_tokens
        try:
            yield
        finally:
            with self._lock:
                self._until = None
                self._may_step.set()

    def came(self, num_tokens: int) -> None:
        """The client has so many tokens."""
        if self._until is None or num_tokens < self._until:
            self._may_step.set()

    def before_step(self) -> None:
        """On the device thread."""
        assert self._may_step.wait(_LONGEST_S), "nobody let the target go on"

    def answered(self) -> None:
        """On the device thread, before the verdict leaves."""
        with self._lock:
            if self._until is not None:
                self._may_step.clear()
