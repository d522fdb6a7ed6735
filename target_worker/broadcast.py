"""Plans go from rank 0 to the other ranks; heartbeats fill the silence; a failure is noticed on every rank."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn, Protocol

import torch

from tandem.core.plan import StepPlan
from tandem.model.engine import Forward
from target_worker.plan_codec import HEARTBEAT, decode, encode
from target_worker.watchdog import Watchdog

HEARTBEATS = 3  # in a watchdog's time


class Channel(Protocol):
    """From rank 0 to all others. Every method raises RuntimeError where a rank is lost."""

    def send(self, numbers: Sequence[int]) -> None: ...

    def receive(self) -> list[int]: ...

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        ...


class PlanBroadcast:
    """Rank 0's end. `on_loss` does not return: the group is one failure unit, and this process is part of it."""

    def __init__(self, channel: Channel, limit_s: float, on_loss: Callable[[str], object]) -> None:
        self._channel = channel
        self._pause_s = limit_s / HEARTBEATS
        self._on_loss = on_loss
        self._watchdog = Watchdog(limit_s, on_loss)
        self._lock = threading.Lock()
        self._last = time.monotonic()
        self._closed = threading.Event()
        threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()

    @contextmanager
    def step(self, plan: StepPlan) -> Iterator[None]:
        """The other ranks run `plan` while the caller does the same inside."""
        with self._lock, self._watched():
            self._channel.send(encode(plan))
            yield

    def close(self) -> None:
        """No step and no heartbeat runs any more."""
        self._closed.set()
        with self._lock:
            self._watchdog.close()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            with self._watchdog.guard():
                yield
        except Exception as error:
            self._on_loss(f"a step failed: {error}")
            raise
        self._last = time.monotonic()

    def _send_heartbeats(self) -> None:
        """A rank that died or hangs is noticed without a step, and no rank mistakes silence for the end of rank 0."""
        while not self._closed.wait(self._pause_s / 2):
            if time.monotonic() - self._last > self._pause_s / 2 and self._lock.acquire(blocking=False):
                try:
                    self._send_heartbeat()
                finally:
                    self._lock.release()

    def _send_heartbeat(self) -> None:
        if self._closed.is_set():
            return
        with self._watched():
            self._channel.send(encode(HEARTBEAT))
            self._channel.barrier()


def run_plans(channel: Channel, model: Forward, watchdog: Watchdog) -> NoReturn:
    """Any other rank's end: runs what rank 0 says. Raises RuntimeError where a rank is lost."""
    while True:
        plan = decode(channel.receive())
        with watchdog.guard():
            if plan == HEARTBEAT:
                channel.barrier()
            else:
                synchronized(model.forward(plan))


def synchronized(logits: torch.Tensor) -> torch.Tensor:
    """`logits`, once the device has computed them."""
    if logits.is_cuda:
        torch.cuda.current_stream(logits.device).synchronize()
    return logits
