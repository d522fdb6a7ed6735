"""Calls, from coordinator to worker."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from tandem.core import types as t
from tandem.v1 import coordinator_pb2 as public
from tandem.v1 import draft_pb2, target_pb2, worker_pb2


def _sampling_to_pb(sampling: t.Sampling) -> public.SamplingParams:
    return public.SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        logit_bias=dict(sampling.logit_bias),
        logprobs=sampling.logprobs,
    )


def sampling_from_pb(message: public.SamplingParams) -> t.Sampling:
    """Absent fields become their defaults; ranges are not checked here."""
    default = t.Sampling()

    def value(name: str) -> Any:
        return getattr(message, name) if message.HasField(name) else getattr(default, name)

    return t.Sampling(
        temperature=value("temperature"),
        top_p=value("top_p"),
        top_k=value("top_k"),
        min_p=value("min_p"),
        repetition_penalty=value("repetition_penalty"),
        presence_penalty=value("presence_penalty"),
        frequency_penalty=value("frequency_penalty"),
        logit_bias=dict(message.logit_bias),
        logprobs=value("logprobs"),
    )


@lru_cache(maxsize=256)
def _known_sampling(message: bytes) -> t.Sampling:
    """All calls of a request carry the same, and to take it apart is nearly half of the work with a call."""
    return sampling_from_pb(public.SamplingParams.FromString(message))


def _call_to_pb(call: t.Call) -> worker_pb2.Call:
    return worker_pb2.Call(
        session_id=call.session_id,
        call=call.number,
        round=call.round,
        rule=f"RULE_{call.rule.name}",
        seed=call.seed,
        sampling=_sampling_to_pb(call.sampling),
        min_tokens=call.min_tokens,
        end_token_ids=sorted(call.end_token_ids),
        budget_ns=None if call.budget_s is None else int(call.budget_s * 1e9),
        max_length=call.max_length,
        salt=call.salt,
        drafter=call.drafter,
        reserve_whole=call.reserve_whole,
    )


def _call_from_pb(message: worker_pb2.Call) -> t.Call:
    return t.Call(
        session_id=message.session_id,
        number=message.call,
        round=message.round,
        rule=t.Rule(message.rule),
        seed=message.seed,
        sampling=_known_sampling(message.sampling.SerializeToString()),
        min_tokens=message.min_tokens,
        end_token_ids=frozenset(message.end_token_ids),
        budget_s=message.budget_ns / 1e9 if message.HasField("budget_ns") else None,
        max_length=message.max_length,
        salt=message.salt,
        drafter=message.drafter,
        reserve_whole=message.reserve_whole,
    )


def _prefix_to_pb(prefix: t.Prefix) -> worker_pb2.Prefix:
    return worker_pb2.Prefix(
        length=prefix.length,
        num_committed=prefix.num_committed,
        num_prompt_tokens=prefix.num_prompt_tokens,
        digest=prefix.digest,
        start=prefix.start,
        tokens=prefix.tokens,
    )


def _prefix_from_pb(message: worker_pb2.Prefix) -> t.Prefix:
    return t.Prefix(
        length=message.length,
        num_committed=message.num_committed,
        num_prompt_tokens=message.num_prompt_tokens,
        digest=message.digest,
        start=message.start,
        tokens=tuple(message.tokens),
    )


def q_to_pb(q: Iterable[t.SparseDistribution]) -> list[worker_pb2.SparseDistribution]:
    """One message per distribution."""
    return [worker_pb2.SparseDistribution(ids=row.ids, weights=row.weights) for row in q]


def q_from_pb(rows: Iterable[worker_pb2.SparseDistribution]) -> tuple[t.SparseDistribution, ...]:
    """Nothing is checked here."""
    return tuple(t.SparseDistribution(tuple(row.ids), tuple(row.weights)) for row in rows)


def _ending_item(item: t.Cancel | t.Release) -> dict[str, Any]:
    if isinstance(item, t.Cancel):
        return {"cancel": worker_pb2.Cancel(session_id=item.session_id, call=item.number)}
    return {"release": worker_pb2.Release(session_id=item.session_id)}


def _ending_item_from_pb(message: Any) -> t.Cancel | t.Release:
    """An item without content releases the session of no name, that is, nothing."""
    if message.WhichOneof("item") == "cancel":
        return t.Cancel(message.cancel.session_id, message.cancel.call)
    return t.Release(message.release.session_id)


def _malformed(call: worker_pb2.Call, error: ValueError) -> t.Malformed:
    return t.Malformed(call.session_id, call.call, str(error))


def propose_to_pb(item: t.Item) -> draft_pb2.ProposeItem:
    """An item for a draft worker."""
    if isinstance(item, t.Propose):
        propose = draft_pb2.Propose(
            call=_call_to_pb(item.call), prefix=_prefix_to_pb(item.prefix), num_tokens=item.num_tokens
        )
        return draft_pb2.ProposeItem(propose=propose)
    assert isinstance(item, t.Cancel | t.Release)
    return draft_pb2.ProposeItem(**_ending_item(item))


def propose_from_pb(message: draft_pb2.ProposeItem) -> t.Item:
    """Any message becomes an item; a call that cannot be one, Malformed."""
    if message.WhichOneof("item") != "propose":
        return _ending_item_from_pb(message)
    propose = message.propose
    try:
        return t.Propose(_call_from_pb(propose.call), _prefix_from_pb(propose.prefix), propose.num_tokens)
    except ValueError as error:
        return _malformed(propose.call, error)


def verify_to_pb(item: t.Item) -> target_pb2.VerifyItem:
    """An item for a target worker."""
    if isinstance(item, t.Verify):
        block = worker_pb2.Block(tokens=item.block.tokens, q=q_to_pb(item.block.q), drafter=item.block.drafter)
        verify = target_pb2.Verify(
            call=_call_to_pb(item.call), prefix=_prefix_to_pb(item.prefix), block=block, ahead_round=item.ahead_round
        )
        return target_pb2.VerifyItem(verify=verify)
    assert isinstance(item, t.Cancel | t.Release)
    return target_pb2.VerifyItem(**_ending_item(item))


def verify_from_pb(message: target_pb2.VerifyItem) -> t.Item:
    """Any message becomes an item; a call that cannot be one, Malformed."""
    if message.WhichOneof("item") != "verify":
        return _ending_item_from_pb(message)
    verify = message.verify
    try:
        call = _call_from_pb(verify.call)
    except ValueError as error:
        return _malformed(verify.call, error)
    block = t.Block(tuple(verify.block.tokens), q_from_pb(verify.block.q), call.round, verify.block.drafter)
    ahead_round = verify.ahead_round if verify.HasField("ahead_round") else None
    return t.Verify(call, _prefix_from_pb(verify.prefix), block, ahead_round)
