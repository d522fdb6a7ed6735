"""What a coordinator counts."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from tandem.core.statistics import Statistics
from tandem.metrics import REQUEST_BUCKETS, ROUND_BUCKETS
from tandem.rpc.codec.public import Finish


class CoordinatorMetrics:
    """Counted once per request, from the same statistics that its client gets."""

    def __init__(self, vllm_names: bool = False) -> None:
        """`vllm_names`: also count speculation under the names that tools written for vLLM read."""
        self.registry = CollectorRegistry()
        self._requests = self._counter("tandem_requests", "Requests by how they ended", "outcome")
        self._tokens = self._counter("tandem_output_tokens", "Output tokens")
        self._prompt_tokens = self._counter("tandem_prompt_tokens", "Prompt tokens")
        self._reused = self._counter("tandem_reused_prompt_tokens", "Prompt tokens found in the target's cache")
        self._verifies = self._counter("tandem_verifies", "Verify calls that had an answer")
        self._drafts = [self._counter("tandem_drafts", "Blocks of draft tokens verified")]
        self._rollbacks = self._counter("tandem_rollbacks", "Verdicts that made a worker drop cached draft tokens")
        self._ahead_hits = self._counter("tandem_ahead_hits", "Ahead blocks used")
        self._wasted = self._counter("tandem_wasted_draft_tokens", "Draft tokens never verified")
        self._fallbacks = self._counter("tandem_fallbacks", "Verifies whose draft was wanted and did not come", "cause")
        self._drafted = [self._counter("tandem_draft_tokens", "Draft tokens verified")]
        self._accepted = [self._counter("tandem_accepted_tokens", "Draft tokens made final")]
        self._per_position = [
            self._counter("tandem_accepted_tokens_per_position", "Draft tokens made final", "position")
        ]
        self._first_token = self._histogram("tandem_time_to_first_token_seconds", REQUEST_BUCKETS)
        self._per_token = self._histogram("tandem_time_per_output_token_seconds", ROUND_BUCKETS)
        self._queue = self._histogram("tandem_queue_seconds", REQUEST_BUCKETS)
        self._round_trips = {
            role: self._histogram(f"tandem_{role}_round_trip_seconds", ROUND_BUCKETS) for role in ("target", "draft")
        }
        self._draft_wait = self._histogram("tandem_draft_wait_seconds", ROUND_BUCKETS)
        if vllm_names:
            self._add_vllm_names()

    def watch(self, num_running: Callable[[], int], num_waiting: Callable[[], int]) -> None:
        """Gauges that are read when they are asked for."""
        Gauge("tandem_requests_running", "Requests that run", registry=self.registry).set_function(num_running)
        Gauge("tandem_requests_waiting", "Requests that wait", registry=self.registry).set_function(num_waiting)

    def answered(self, role: str, seconds: float) -> None:
        """A worker (target, draft) has given the last of its answer to a call, so long after it was sent."""
        self._round_trips[role].observe(seconds)

    def ended(self, outcome: str) -> None:
        """A request ended: a finish reason or a status, in lower case."""
        self._requests.labels(outcome).inc()

    def finished(self, finish: Finish, num_new_tokens: int) -> None:
        """A request ended well, after `num_new_tokens` tokens of its own."""
        self.ended(finish.ending.reason.name.lower())
        self._tokens.inc(num_new_tokens)
        self._prompt_tokens.inc(finish.num_prompt_tokens)
        self._reused.inc(finish.num_reused_prompt_tokens)
        self._count_speculation(finish.statistics)
        durations, num_verifies = finish.durations, finish.statistics.num_verifies
        self._queue.observe(durations.queue_s)
        if num_verifies:
            self._first_token.observe(durations.first_token_s)
            self._draft_wait.observe(durations.draft_wait_s / num_verifies)
        if num_new_tokens > 1:
            self._per_token.observe((durations.total_s - durations.first_token_s) / (num_new_tokens - 1))

    def _count_speculation(self, statistics: Statistics) -> None:
        self._verifies.inc(statistics.num_verifies)
        self._rollbacks.inc(statistics.num_rollbacks)
        self._ahead_hits.inc(statistics.num_ahead_hits)
        self._wasted.inc(statistics.num_wasted_draft_tokens)
        for counter in self._drafts:
            counter.inc(statistics.num_drafts)
        for counter in self._drafted:
            counter.inc(statistics.num_draft_tokens)
        for counter in self._accepted:
            counter.inc(statistics.num_accepted_tokens)
        for counter in self._per_position:
            for position, count in enumerate(statistics.num_accepted_per_position):
                counter.labels(position).inc(count)
        for cause, count in statistics.fallbacks.items():
            self._fallbacks.labels(cause).inc(count)

    def _add_vllm_names(self) -> None:
        self._drafts.append(self._counter("vllm:spec_decode_num_drafts", "Alias"))
        self._drafted.append(self._counter("vllm:spec_decode_num_draft_tokens", "Alias"))
        self._accepted.append(self._counter("vllm:spec_decode_num_accepted_tokens", "Alias"))
        self._per_position.append(self._counter("vllm:spec_decode_num_accepted_tokens_per_pos", "Alias", "position"))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, "Seconds", buckets=buckets, registry=self.registry)
