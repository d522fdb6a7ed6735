"""Whether a step waits for sessions that are about to come back, so that they share steps instead of taking turns.

After a step its sessions are away: their answers travel, and their next calls come back within a moment of one another.
A step that begins with the first of them makes all others wait for its end. So with n calls ready and m sessions away
that are due back within r seconds, waiting costs the ready n r, and beginning costs the others m times what they then
wait for, a step of s seconds less r: it is worth waiting while n r < m (s - r), that is, while r < s m / (n + m).

Times are arguments, in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable

_WEIGHT = 1 / 16  # of a new return in the means; the first ones weigh alike
_DEVIATIONS = 3.0  # beyond the mean return until which a session is waited for
_LONGEST = 2.0  # steps that a return is counted for, at most


class Gathering:
    """Who was answered in the last two steps and has not come back, and how long that usually takes.

    Who is not back in the usual time is not waited for any more, until it has been in a step again.
    """

    def __init__(self) -> None:
        self._left_s: dict[Hashable, float] = {}  # sessions away -> when they were answered
        self._ended_s = 0.0  # the end of the last step
        self._step_s = 0.0  # its length
        self._num_returns = 0
        self._mean_s = 0.0  # of returns
        self._deviation_s = 0.0  # mean distance from it

    def stepped(self, answered: Iterable[Hashable], began_s: float, ended_s: float) -> None:
        """A step has ended that answered the calls of these sessions."""
        for session in [session for session, left_s in self._left_s.items() if left_s < self._ended_s]:
            self._return(session, ended_s)
        self._ended_s, self._step_s = ended_s, ended_s - began_s
        self._left_s |= dict.fromkeys(answered, ended_s)

    def returned(self, session: Hashable, now_s: float) -> None:
        """Its next call has come."""
        if session in self._left_s:
            self._return(session, now_s)

    def ended(self, session: Hashable) -> None:
        """It will not come back."""
        self._left_s.pop(session, None)

    def wait_s(self, num_ready: int, now_s: float) -> float:
        """How much longer the next step should wait for those who are due, at most; 0: it begins."""
        waits = (
            self._worth_waiting_s(left_s, num_away, num_ready, now_s)
            for left_s, num_away in Counter(self._left_s.values()).items()
        )
        return max(waits, default=0.0) if num_ready else 0.0

    def _worth_waiting_s(self, left_s: float, num_away: int, num_ready: int, now_s: float) -> float:
        due_s = left_s + self._mean_s + _DEVIATIONS * self._deviation_s - now_s
        return due_s if 0 < due_s < self._step_s * num_away / (num_ready + num_away) else 0.0

    def _return(self, session: Hashable, now_s: float) -> None:
        took_s = min(now_s - self._left_s.pop(session), _LONGEST * self._step_s)
        self._num_returns += 1
        weight = max(1 / self._num_returns, _WEIGHT)
        self._mean_s += weight * (took_s - self._mean_s)
        self._deviation_s += weight * (abs(took_s - self._mean_s) - self._deviation_s)
