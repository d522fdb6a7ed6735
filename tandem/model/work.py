"""What the engine of a worker has done, counted as it goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Work:
    """What an engine has done."""

    num_steps: int = 0
    num_rows: int = 0
    busy_ns: int = 0
    bubble_ns: int = 0  # between two steps in which some session went on, but no call was there
    num_started: int = 0  # calls that got their first rows
    queue_ns: int = 0  # that these had waited for them
    num_running: int = 0  # calls, now
    num_turns: int = 0  # of the step loop, but those that left calls at work without a row
    num_submitted: int = 0  # calls handed over by the door, which alone writes this
    num_received: int = 0  # calls that the step loop has taken
    num_unstarted: int = 0  # calls taken that have had no row yet, now
    _stepped_until_ns: int | None = None  # the end of the last step, unless all sessions have ended since

    @property
    def num_waiting(self) -> int:
        """Calls that have had no row yet, now."""
        return self.num_submitted - self.num_received + self.num_unstarted

    def began(self, waited_ns: int) -> None:
        """A call has its first rows in the step that begins."""
        self.num_started += 1
        self.queue_ns += waited_ns

    def stepped(self, num_rows: int, began_ns: int, ended_ns: int) -> None:
        """A forward pass is done."""
        self.num_steps += 1
        self.num_rows += num_rows
        self.busy_ns += ended_ns - began_ns
        self.bubble_ns += began_ns - (self._stepped_until_ns or began_ns)
        self._stepped_until_ns = ended_ns

    def rest(self) -> None:
        """The last session has ended: what comes now is idle time, not a bubble."""
        self._stepped_until_ns = None
