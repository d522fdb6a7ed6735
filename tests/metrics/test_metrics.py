"""What issue after issue asks of metrics: all there, counted once, under names that tools take."""

from __future__ import annotations

import asyncio
import re

import pytest
from prometheus_client import generate_latest

from metrics.registries import coordinator_metrics, engine, registries
from tandem.core.types import (
    Block,
    Call,
    Drafted,
    Prefix,
    Propose,
    Refusal,
    RefusalReason,
    Reply,
    Rule,
    Verdict,
    Verify,
)
from tandem.metrics import ROUND_BUCKETS
from tandem.model.work import Work
from tandem.rpc.exchange import Exchange
from tandem.rpc.worker_metrics import WorkerMetrics

LISTED = {
    "drafts": "tandem_drafts_total",
    "accepted per position": 'tandem_accepted_tokens_per_position_total{position="0"}',
    "roll-backs": "tandem_rollbacks_total",
    "ahead hits": "tandem_ahead_hits_total",
    "wasted draft tokens": "tandem_wasted_draft_tokens_total",
    "fallbacks by cause": 'tandem_fallbacks_total{cause="timeout"}',
    "busy share": "tandem_target_busy_seconds_total",
    "bubble": "tandem_target_bubble_seconds_total",
    "queue": "tandem_queue_seconds_count",
    "requests that wait": "tandem_requests_waiting",
    "KV share": "tandem_target_kv_used_ratio",
    "time to first token": "tandem_time_to_first_token_seconds_count",
    "per token": "tandem_time_per_output_token_seconds_count",
    "verify round trip": "tandem_target_round_trip_seconds_count",
    "draft round trip": "tandem_draft_round_trip_seconds_count",
    "memory of the process": "process_resident_memory_bytes",
}
VLLM = {
    "vllm:spec_decode_num_drafts_total": 2.0,
    "vllm:spec_decode_num_draft_tokens_total": 6.0,
    "vllm:spec_decode_num_accepted_tokens_total": 5.0,
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="0"}': 2.0,
}
SESSION = b"s" * 16


def served() -> list[str]:
    return [line for registry in registries() for line in generate_latest(registry).decode().splitlines()]


@pytest.mark.parametrize("what", LISTED)
def test_it_is_served(what: str) -> None:
    assert any(line.startswith(LISTED[what] + " ") for line in served())


def test_the_names_that_tools_for_vllm_read_are_there_when_asked_for_and_only_then() -> None:
    lines = generate_latest(coordinator_metrics(vllm_names=True).registry).decode().splitlines()
    assert all(f"{name} {value}" in lines for name, value in VLLM.items())
    assert not [line for line in served() if "vllm:" in line]


def test_round_trips_are_told_apart_from_half_a_millisecond_on() -> None:
    """An RPC between machines of one rack takes that long; the buckets that engines use begin at 10 ms."""
    for role in ("target", "draft"):
        bounds = [
            float(bound)
            for line in served()
            for bound in re.findall(rf'^tandem_{role}_round_trip_seconds_bucket{{le="([\d.]+)"}}', line)
        ]
        assert tuple(bounds) == ROUND_BUCKETS and bounds[0] == 0.0005


def test_a_call_is_timed_once_it_is_answered_whole() -> None:
    """Not by its first tokens, not by a refusal, not by what comes for nobody."""

    async def answered(item: Verify | Propose, *bodies: Drafted | Verdict | Refusal) -> int:
        exchange, times = Exchange(), []
        exchange.on_answer = times.append
        exchange.connect()
        exchange.open(item)
        exchange.receive([Reply(SESSION, 1, body) for body in bodies])
        exchange.receive([Reply(b"x" * 16, 1, Verdict(0, 1))])
        assert all(seconds >= 0 for seconds in times)
        return len(times)

    call = Call(SESSION, 1, 1, Rule.GREEDY, 8)
    prefix = Prefix(2, 2, 2, 0, 0, (1, 2))
    verify, propose = Verify(call, prefix, Block(), None), Propose(call, prefix, 2)
    assert asyncio.run(answered(verify, Verdict(0, 1))) == 1
    assert asyncio.run(answered(verify, Refusal(RefusalReason.MISSING))) == 0
    assert asyncio.run(answered(propose, Drafted((1,)))) == 0
    assert asyncio.run(answered(propose, Drafted((1,)), Drafted((2,), done=True, offset=1))) == 1


def test_busy_and_bubble_share_out_the_time_between_first_and_last_step() -> None:
    """busy + bubble = the time of steps and of the pauses between them, but those with no session."""
    work = Work()
    work.stepped(num_rows=3, began_ns=100, ended_ns=130)
    work.stepped(num_rows=1, began_ns=150, ended_ns=160)
    work.rest()
    work.stepped(num_rows=1, began_ns=900, ended_ns=905)
    assert (work.busy_ns, work.bubble_ns) == (45, 20)
    assert (work.num_steps, work.num_rows) == (3, 5)


def test_a_worker_serves_its_waiting_time_call_by_call() -> None:
    device = engine()
    device.work.began(waited_ns=2_000_000_000)
    device.work.began(waited_ns=500_000_000)
    lines = generate_latest(WorkerMetrics(device, "draft").registry).decode().splitlines()
    assert "tandem_draft_calls_total 2.0" in lines and "tandem_draft_queue_seconds_total 2.5" in lines
