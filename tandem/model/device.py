"""The device thread: the one thread of a worker on which forward passes run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Hashable, Sequence

from tandem.core.types import Item
from tandem.model.engine import Answer, Engine

_Event = Callable[[Engine], None]


class DeviceThread:
    """Feeds an engine with what arrives and hands out its answers, step by step.

    `deliver` is called on the device thread with the answers of one step; it must not block.
    """

    def __init__(self, engine: Engine, deliver: Callable[[list[Answer]], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="device", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, stream: Hashable, items: Sequence[Item]) -> None:
        """Hands over the items of one message; from any thread."""
        self._events.put(lambda engine: engine.receive(stream, items))

    def close_stream(self, stream: Hashable) -> None:
        """Says that no answer on `stream` can arrive any more; from any thread."""
        self._events.put(lambda engine: engine.close_stream(stream))

    def stop(self) -> None:
        """Ends the thread after the step that runs; safe to call twice."""
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._take_events():
            if answers := self._engine.step():
                self._deliver(answers)

    def _take_events(self) -> bool:
        """Applies all that has arrived, waiting for something if there is no work; False when asked to stop."""
        while not self._engine.busy or not self._events.empty():
            event = self._events.get()
            if event is None:
                return False
            event(self._engine)
        return True
