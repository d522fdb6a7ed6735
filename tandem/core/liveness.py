"""Whether a loop that should go on does."""

from __future__ import annotations


class Progress:
    """Watches a count that a healthy loop raises again and again, at work or idle."""

    def __init__(self, patience_s: float) -> None:
        """`patience_s`: the longest time without a change that is not a stall."""
        self._patience_s = patience_s
        self._count: int | None = None
        self._since_s = 0.0

    def stalled(self, count: int, now_s: float) -> bool:
        """Takes the count as of `now_s`, a clock that never goes back."""
        if count != self._count:
            self._count, self._since_s = count, now_s
        return now_s - self._since_s > self._patience_s
