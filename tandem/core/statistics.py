"""What speculation did for one request. Counted after the cut, so that no number exceeds what was streamed."""

from __future__ import annotations

from collections import Counter


class Statistics:
    def __init__(self) -> None:
        self.num_verifies = 0
        self.num_drafts = 0  # verifies with draft tokens
        self.num_draft_tokens = 0  # sent to a verify
        self.num_accepted_tokens = 0  # of those, made final
        self.num_accepted_per_position: list[int] = []
        self.num_rollbacks = 0  # verdicts that made a worker drop cached draft tokens
        self.num_ahead_hits = 0  # ahead blocks used
        self.num_wasted_draft_tokens = 0  # drafted, never verified
        self.fallbacks: Counter[str] = Counter()  # verifies whose draft was wanted and did not come, by cause

    def verified(self, num_drafted: int, num_accepted: int, rolled_back: bool) -> None:
        """Counts one verdict on `num_drafted` draft tokens of which `num_accepted` became final."""
        self.num_verifies += 1
        self.num_drafts += num_drafted > 0
        self.num_draft_tokens += num_drafted
        self.num_accepted_tokens += num_accepted
        self.num_rollbacks += rolled_back
        missing = num_accepted - len(self.num_accepted_per_position)
        self.num_accepted_per_position += [0] * missing
        for position in range(num_accepted):
            self.num_accepted_per_position[position] += 1

    def ahead_dropped(self, num_tokens: int, rolled_back: bool) -> None:
        """Counts an ahead block of which `num_tokens` had come and that did not stand."""
        self.num_wasted_draft_tokens += num_tokens
        self.num_rollbacks += rolled_back
