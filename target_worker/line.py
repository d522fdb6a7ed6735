"""The line from rank 0 to the other ranks: plans go out, silence is filled with heartbeats, a failure ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

import torch

from tandem.core.plan import StepPlan
from tandem.model.engine import Forward
from target_worker import wire
from target_worker.watchdog import Watchdog

BEATS = 3  # in a watchdog's time


class Channel(Protocol):
    """Carries words from rank 0 to all others. Every method raises RuntimeError where a rank is lost."""

    def send(self, words: Sequence[int]) -> None: ...

    def receive(self) -> list[int]: ...

    def confirm(self) -> None:
        """Returns once every rank has called it."""
        ...


class Line:
    """Rank 0's end. `on_loss` does not return: the group is one failure unit, and this process is part of it."""

    def __init__(self, channel: Channel, limit_s: float, on_loss: Callable[[str], object]) -> None:
        self._channel = channel
        self._pause_s = limit_s / BEATS
        self._on_loss = on_loss
        self._watchdog = Watchdog(limit_s, on_loss)
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    @contextmanager
    def step(self, plan: StepPlan) -> Iterator[None]:
        """The other ranks run `plan` while the caller does the same inside."""
        with self._lock, self._blaming():
            self._channel.send(wire.encode(plan))
            yield

    def close(self) -> None:
        """Has the other ranks stop. No step runs any more."""
        self._closed.set()
        with self._lock, suppress(RuntimeError):
            self._channel.send(wire.STOP)
        self._watchdog.close()

    @contextmanager
    def _blaming(self) -> Iterator[None]:
        try:
            with self._watchdog.guard():
                yield
        except Exception as error:
            self._on_loss(f"a step failed: {error}")
            raise
        self._last = time.monotonic()

    def _beat(self) -> None:
        """A rank that died or hangs is noticed without a step, and no rank mistakes silence for the end of rank 0."""
        while not self._closed.wait(self._pause_s / 2):
            if time.monotonic() - self._last > self._pause_s / 2 and self._lock.acquire(blocking=False):
                try:
                    self._confirm()
                finally:
                    self._lock.release()

    def _confirm(self) -> None:
        if self._closed.is_set():
            return
        with self._blaming():
            self._channel.send(wire.IDLE)
            self._channel.confirm()


def follow(channel: Channel, model: Forward, watchdog: Watchdog) -> None:
    """Any other rank's end: runs what rank 0 says until it says stop. Raises RuntimeError where a rank is lost."""
    while (plan := wire.decode(channel.receive())) is not None:
        with watchdog.guard():
            if plan.sequences:
                finish(model.forward(plan))
            else:
                channel.confirm()


def finish(logits: torch.Tensor) -> torch.Tensor:
    """`logits`, once the device has computed them."""
    if logits.is_cuda:
        torch.cuda.current_stream(logits.device).synchronize()
    return logits
