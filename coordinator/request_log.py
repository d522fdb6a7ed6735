"""How each request ended, once: a line in the log and a count. Never what was asked or said."""

from __future__ import annotations

import asyncio
import logging

from coordinator.metrics import CoordinatorMetrics
from tandem.logs import escaped, log_event
from tandem.rpc.codec.public import Finish

_log = logging.getLogger(__name__)
_EVENT = "request ended"


class RequestLog:
    """Of one request."""

    def __init__(self, metrics: CoordinatorMetrics) -> None:
        self.request_id = ""  # known once the request has been parsed
        self._metrics = metrics
        self._began_s = asyncio.get_running_loop().time()
        self._has_ended = False

    def finished(self, finish: Finish, num_new_tokens: int) -> None:
        """It ended well, after `num_new_tokens` output tokens of its own."""
        self._has_ended = True
        self._metrics.finished(finish, num_new_tokens)
        statistics, durations = finish.statistics, finish.durations
        log_event(
            _log,
            _EVENT,
            request_id=escaped(self.request_id),
            outcome=finish.ending.reason.name.lower(),
            prompt_tokens=finish.num_prompt_tokens,
            output_tokens=num_new_tokens,
            verifies=statistics.num_verifies,
            draft_tokens=statistics.num_draft_tokens,
            accepted_tokens=statistics.num_accepted_tokens,
            fallbacks=statistics.fallbacks.total(),
            queue_s=round(durations.queue_s, 4),
            first_token_s=round(durations.first_token_s, 4),
            total_s=round(durations.total_s, 4),
        )

    def failed(self, outcome: str) -> None:
        """It ended otherwise, unless it had ended well before: `outcome` is a status in lower case."""
        if self._has_ended:
            return
        self._has_ended = True
        self._metrics.ended(outcome)
        total_s = round(asyncio.get_running_loop().time() - self._began_s, 4)
        log_event(_log, _EVENT, request_id=escaped(self.request_id), outcome=outcome, total_s=total_s)
