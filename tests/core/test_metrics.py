"""Metrics agree with what a client gets, under names that Prometheus' own linter takes."""

import re
import urllib.request

from coordinator.metrics import CoordinatorMetrics
from tandem.core.blocks import BlockPool
from tandem.core.plan import StepPlan
from tandem.core.sessions import SessionTable
from tandem.core.statistics import Statistics
from tandem.core.stopping import Ending
from tandem.core.types import FinishReason
from tandem.metrics import metrics_served
from tandem.model.engine import Engine
from tandem.rpc.codec.public import Durations, Finish
from tandem.rpc.worker_metrics import WorkerMetrics


def finish() -> Finish:
    statistics = Statistics()
    statistics.verified(num_drafted=3, num_accepted=2, rolled_back=True)
    statistics.verified(num_drafted=3, num_accepted=3, rolled_back=False)
    statistics.fallbacks["timeout"] += 1
    durations = Durations(queue_s=0.1, first_token_s=0.2, total_s=1.2, verify_s=0.4, prompt_s=0.1, draft_wait_s=0.2)
    return Finish(Ending(FinishReason.MAX_TOKENS), 5, 11, 0, statistics, durations)


def scrape(metrics: CoordinatorMetrics | WorkerMetrics) -> str:
    with (
        metrics_served(metrics.registry, "127.0.0.1", 0) as port,
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer,
    ):
        return answer.read().decode()  # type: ignore[no-any-return]


def test_a_request_is_counted_as_its_client_sees_it() -> None:
    metrics = CoordinatorMetrics()
    metrics.finished(finish(), num_new_tokens=11)
    text = scrape(metrics)
    for line in (
        'tandem_requests_total{outcome="max_tokens"} 1.0',
        "tandem_output_tokens_total 11.0",
        "tandem_draft_tokens_total 6.0",
        "tandem_accepted_tokens_total 5.0",
        'tandem_accepted_tokens_per_position_total{position="0"} 2.0',
        'tandem_accepted_tokens_per_position_total{position="2"} 1.0',
        'tandem_fallbacks_total{cause="timeout"} 1.0',
        "tandem_rollbacks_total 1.0",
        "tandem_time_per_output_token_seconds_sum 0.1",
    ):
        assert line in text.splitlines()


def test_our_names_have_no_colon_and_the_aliases_are_asked_for() -> None:
    plain, both = CoordinatorMetrics(), CoordinatorMetrics(vllm_names=True)
    for metrics in (plain, both):
        metrics.finished(finish(), num_new_tokens=11)
    names = re.findall(r"^# TYPE (\S+)", scrape(plain), re.MULTILINE)
    assert names and all(re.fullmatch(r"(tandem|process)_[a-z_]+", name) for name in names)
    assert "vllm:spec_decode_num_accepted_tokens_total 5.0" in scrape(both).splitlines()


def test_a_worker_shows_its_engine() -> None:
    class NoModel:
        def forward(self, plan: StepPlan) -> None:
            raise AssertionError

    engine = Engine(NoModel(), SessionTable(BlockPool(4, 2)), lambda *_: None, 8)  # type: ignore[arg-type]
    engine.work.busy_ns = 1_500_000_000
    text = scrape(WorkerMetrics(engine, "target")).splitlines()
    assert "tandem_target_busy_seconds_total 1.5" in text and "tandem_target_kv_used_ratio 0.0" in text
