"""The device thread: the one thread of a worker on which forward passes run."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Hashable, Sequence

from tandem.core.types import Item, Propose, Verify
from tandem.model.engine import Answer, Engine

_IDLE_S = 1.0  # between two looks at the leases of an idle worker
_log = logging.getLogger(__name__)
_Event = Callable[[Engine], None]


class DeviceThread:
    """Feeds an engine with what arrives and hands out its answers, step by step.

    `deliver` is called on the device thread with the answers of one step; it must not block.
    """

    def __init__(
        self,
        engine: Engine,
        deliver: Callable[[list[Answer]], None],
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_failure` is called when the thread ends by an error, which is a fault of ours: no call causes it."""
        self._engine = engine
        self._deliver = deliver
        self._on_failure = on_failure
        self.failed = False
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, stream: Hashable, items: Sequence[Item]) -> None:
        """Hands over the items of one message; from one thread, the door's."""
        self._engine.work.num_submitted += sum(isinstance(item, Verify | Propose) for item in items)
        came_ns = self._engine.clock_ns()
        self._events.put(lambda engine: engine.receive(stream, items, came_ns))

    def close_stream(self, stream: Hashable) -> None:
        """Says that no answer on `stream` can arrive any more; from any thread."""
        self._events.put(lambda engine: engine.close_stream(stream))

    def stop(self) -> None:
        """Ends the thread after the step that runs; safe to call twice."""
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take_events():
                if answers := self._engine.step():
                    self._deliver(answers)
        except Exception:
            _log.exception("the device thread failed")
            self.failed = True
            self._on_failure()

    def _take_events(self) -> bool:
        """Applies all that has arrived, and what comes while it pays to wait for it; without work, waits for something,
        or until idle sessions may have to go.

        False when asked to stop.
        """
        wait_s = self._engine.wait_s if self._engine.busy else _IDLE_S
        while True:
            try:
                event = self._events.get(timeout=wait_s) if wait_s else self._events.get_nowait()
            except queue.Empty:
                return True
            if event is None:
                return False
            event(self._engine)
            wait_s = self._engine.wait_s
