"""The registries of the three services, filled by one made-up request."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, ProcessCollector

from coordinator.metrics import CoordinatorMetrics
from tandem.core.blocks import BlockPool
from tandem.core.plan import StepPlan
from tandem.core.sessions import SessionTable
from tandem.core.statistics import Statistics
from tandem.core.stopping import Ending
from tandem.core.types import FinishReason
from tandem.model.engine import Engine
from tandem.rpc.codec.public import Durations, Finish
from tandem.rpc.worker_metrics import WorkerMetrics


class NoModel:
    def forward(self, plan: StepPlan) -> None:
        raise AssertionError


def engine() -> Engine:
    return Engine(NoModel(), SessionTable(BlockPool(4, 2)), lambda *_: None, 8)  # type: ignore[arg-type]


def finish() -> Finish:
    """Two verdicts on blocks of three, one without a draft, one fallback."""
    statistics = Statistics()
    statistics.verified(num_drafted=3, num_accepted=2, rolled_back=True)
    statistics.verified(num_drafted=3, num_accepted=3, rolled_back=False)
    statistics.verified(num_drafted=0, num_accepted=0, rolled_back=False)
    statistics.fallbacks["timeout"] += 1
    durations = Durations(queue_s=0.1, first_token_s=0.2, total_s=1.2, verify_s=0.4, prompt_s=0.1, draft_wait_s=0.2)
    return Finish(Ending(FinishReason.MAX_TOKENS), 5, 11, 0, statistics, durations)


def coordinator_metrics(vllm_names: bool = False) -> CoordinatorMetrics:
    metrics = CoordinatorMetrics(vllm_names)
    metrics.watch(lambda: 1, lambda: 0)
    metrics.finished(finish(), num_new_tokens=11)
    return metrics


def registries() -> list[CollectorRegistry]:
    """As each service serves it."""
    found = [coordinator_metrics().registry, *(WorkerMetrics(engine(), role).registry for role in ("draft", "target"))]
    for registry in found:
        ProcessCollector(registry=registry)
    return found


def sample_names() -> set[str]:
    """Every name that a query can find."""
    return {sample.name for registry in registries() for family in registry.collect() for sample in family.samples}
