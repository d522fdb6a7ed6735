"""Dataclasses to protobuf and back: the one module in which messages between services are taken apart."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tandem.core import types as t
from tandem.v1 import coordinator_pb2 as public
from tandem.v1 import draft_pb2, target_pb2, worker_pb2


class MalformedItem(ValueError):
    """A message that no item can be made of."""


# --- calls, from coordinator to worker


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


def _call_to_pb(call: t.Call) -> worker_pb2.Call:
    return worker_pb2.Call(
        session_id=call.session_id,
        call=call.number,
        round=call.round,
        rule=call.rule.value,
        seed=call.seed,
        sampling=_sampling_to_pb(call.sampling),
        min_tokens=call.min_tokens,
        end_token_ids=sorted(call.end_token_ids),
        budget_ns=None if call.budget_s is None else int(call.budget_s * 1e9),
        max_length=call.max_length,
        salt=call.salt,
        drafter=call.drafter,
    )


def _call_from_pb(message: worker_pb2.Call) -> t.Call:
    try:
        rule = t.Rule(message.rule)
    except ValueError as error:
        raise MalformedItem(f"rule {message.rule} is unknown") from error
    return t.Call(
        session_id=message.session_id,
        number=message.call,
        round=message.round,
        rule=rule,
        seed=message.seed,
        sampling=sampling_from_pb(message.sampling),
        min_tokens=message.min_tokens,
        end_token_ids=frozenset(message.end_token_ids),
        budget_s=message.budget_ns / 1e9 if message.HasField("budget_ns") else None,
        max_length=message.max_length,
        salt=message.salt,
        drafter=message.drafter,
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


def _q_to_pb(q: Iterable[t.SparseDistribution]) -> list[worker_pb2.SparseDistribution]:
    return [worker_pb2.SparseDistribution(ids=row.ids, weights=row.weights) for row in q]


def _q_from_pb(rows: Iterable[worker_pb2.SparseDistribution]) -> tuple[t.SparseDistribution, ...]:
    return tuple(t.SparseDistribution(tuple(row.ids), tuple(row.weights)) for row in rows)


def _ending_item(item: t.Cancel | t.Release) -> dict[str, Any]:
    if isinstance(item, t.Cancel):
        return {"cancel": worker_pb2.Cancel(session_id=item.session_id, call=item.number)}
    return {"release": worker_pb2.Release(session_id=item.session_id)}


def _ending_item_from_pb(message: Any) -> t.Cancel | t.Release:
    kind = message.WhichOneof("item")
    if kind == "cancel":
        return t.Cancel(message.cancel.session_id, message.cancel.call)
    if kind == "release":
        return t.Release(message.release.session_id)
    raise MalformedItem("an item of no known kind")


def _propose_to_pb(item: t.Item) -> draft_pb2.ProposeItem:
    if isinstance(item, t.Propose):
        propose = draft_pb2.Propose(
            call=_call_to_pb(item.call), prefix=_prefix_to_pb(item.prefix), num_tokens=item.num_tokens
        )
        return draft_pb2.ProposeItem(propose=propose)
    assert not isinstance(item, t.Verify)
    return draft_pb2.ProposeItem(**_ending_item(item))


def _propose_from_pb(message: draft_pb2.ProposeItem) -> t.Item:
    if message.WhichOneof("item") != "propose":
        return _ending_item_from_pb(message)
    propose = message.propose
    return t.Propose(_call_from_pb(propose.call), _prefix_from_pb(propose.prefix), propose.num_tokens)


def _verify_to_pb(item: t.Item) -> target_pb2.VerifyItem:
    if isinstance(item, t.Verify):
        block = worker_pb2.Block(tokens=item.block.tokens, q=_q_to_pb(item.block.q), drafter=item.block.drafter)
        verify = target_pb2.Verify(
            call=_call_to_pb(item.call), prefix=_prefix_to_pb(item.prefix), block=block, ahead_round=item.ahead_round
        )
        return target_pb2.VerifyItem(verify=verify)
    assert not isinstance(item, t.Propose)
    return target_pb2.VerifyItem(**_ending_item(item))


def _verify_from_pb(message: target_pb2.VerifyItem) -> t.Item:
    if message.WhichOneof("item") != "verify":
        return _ending_item_from_pb(message)
    verify = message.verify
    call = _call_from_pb(verify.call)
    block = t.Block(tuple(verify.block.tokens), _q_from_pb(verify.block.q), call.round, verify.block.drafter)
    ahead_round = verify.ahead_round if verify.HasField("ahead_round") else None
    return t.Verify(call, _prefix_from_pb(verify.prefix), block, ahead_round)


# --- replies, from worker to coordinator


def _refusal_to_pb(refusal: t.Refusal) -> worker_pb2.Refusal:
    return worker_pb2.Refusal(reason=refusal.reason.value, have=refusal.have, message=refusal.message)


def _refusal_from_pb(message: worker_pb2.Refusal) -> t.Refusal:
    try:
        reason = t.RefusalReason(message.reason)
    except ValueError:
        reason = t.RefusalReason.FAULT
    return t.Refusal(reason, message.message, message.have)


def _propose_reply_to_pb(reply: t.Reply) -> draft_pb2.ProposeReply:
    message = draft_pb2.ProposeReply(
        session_id=reply.session_id, call=reply.number, queue_ns=reply.queue_ns, compute_ns=reply.compute_ns
    )
    body = reply.body
    if isinstance(body, t.Refusal):
        message.refusal.CopyFrom(_refusal_to_pb(body))
    else:
        assert isinstance(body, t.Drafted)
        block = worker_pb2.Block(tokens=body.tokens, q=_q_to_pb(body.q), drafter=body.drafter)
        message.drafted.CopyFrom(draft_pb2.Drafted(block=block, done=body.done))
    return message


def _propose_reply_from_pb(message: draft_pb2.ProposeReply) -> t.Reply:
    body: t.Drafted | t.Refusal
    if message.WhichOneof("body") == "drafted":
        block = message.drafted.block
        body = t.Drafted(tuple(block.tokens), _q_from_pb(block.q), block.drafter, message.drafted.done)
    else:
        body = _refusal_from_pb(message.refusal)
    return t.Reply(message.session_id, message.call, body, message.queue_ns, message.compute_ns)


def logprobs_to_pb(logprobs: t.Logprobs) -> public.TokenLogprobs:
    """One emitted token's log probability and those of the most likely tokens."""
    top = [public.TopLogprob(token_id=token, logprob=logprob) for token, logprob in logprobs.top]
    return public.TokenLogprobs(logprob=logprobs.logprob, top=top)


def _logprobs_from_pb(message: public.TokenLogprobs) -> t.Logprobs:
    return t.Logprobs(message.logprob, tuple((top.token_id, top.logprob) for top in message.top))


def _verify_reply_to_pb(reply: t.Reply) -> target_pb2.VerifyReply:
    message = target_pb2.VerifyReply(
        session_id=reply.session_id, call=reply.number, queue_ns=reply.queue_ns, compute_ns=reply.compute_ns
    )
    body = reply.body
    if isinstance(body, t.Refusal):
        message.refusal.CopyFrom(_refusal_to_pb(body))
    else:
        assert isinstance(body, t.Verdict)
        logprobs = [logprobs_to_pb(row) for row in body.logprobs]
        verdict = target_pb2.Verdict(num_accepted=body.num_accepted, next_token=body.next_token, logprobs=logprobs)
        message.verdict.CopyFrom(verdict)
    return message


def _verify_reply_from_pb(message: target_pb2.VerifyReply) -> t.Reply:
    body: t.Verdict | t.Refusal
    if message.WhichOneof("body") == "verdict":
        verdict = message.verdict
        logprobs = tuple(_logprobs_from_pb(row) for row in verdict.logprobs)
        body = t.Verdict(verdict.num_accepted, verdict.next_token, logprobs)
    else:
        body = _refusal_from_pb(message.refusal)
    return t.Reply(message.session_id, message.call, body, message.queue_ns, message.compute_ns)


# --- whole messages, by kind of worker


class DraftCodec:
    """Messages of the draft stream."""

    @staticmethod
    def request(items: Iterable[t.Item]) -> draft_pb2.ProposeRequest:
        return draft_pb2.ProposeRequest(items=[_propose_to_pb(item) for item in items])

    @staticmethod
    def items(message: draft_pb2.ProposeRequest) -> list[t.Item]:
        return [_propose_from_pb(item) for item in message.items]

    @staticmethod
    def response(replies: Iterable[t.Reply]) -> draft_pb2.ProposeResponse:
        return draft_pb2.ProposeResponse(replies=[_propose_reply_to_pb(reply) for reply in replies])

    @staticmethod
    def replies(message: draft_pb2.ProposeResponse) -> list[t.Reply]:
        return [_propose_reply_from_pb(reply) for reply in message.replies]


class TargetCodec:
    """Messages of the target stream."""

    @staticmethod
    def request(items: Iterable[t.Item]) -> target_pb2.VerifyRequest:
        return target_pb2.VerifyRequest(items=[_verify_to_pb(item) for item in items])

    @staticmethod
    def items(message: target_pb2.VerifyRequest) -> list[t.Item]:
        return [_verify_from_pb(item) for item in message.items]

    @staticmethod
    def response(replies: Iterable[t.Reply]) -> target_pb2.VerifyResponse:
        return target_pb2.VerifyResponse(replies=[_verify_reply_to_pb(reply) for reply in replies])

    @staticmethod
    def replies(message: target_pb2.VerifyResponse) -> list[t.Reply]:
        return [_verify_reply_from_pb(reply) for reply in message.replies]


def description_to_pb(description: t.Description) -> worker_pb2.DescribeResponse:
    """The answer to Describe."""
    return worker_pb2.DescribeResponse(
        model=description.model,
        fingerprint=description.fingerprint,
        context_length=description.context_length,
        end_token_ids=sorted(description.end_token_ids),
        head_width=description.head_width,
        num_pieces=description.num_pieces,
        vocabulary_hash=description.vocabulary_hash,
        kv_budget_tokens=description.kv_budget_tokens,
        max_block=description.max_block,
        incarnation=description.incarnation,
        tensor_parallel_size=description.tensor_parallel_size,
        num_sessions=description.num_sessions,
        kv_used_tokens=description.kv_used_tokens,
        drafters=description.drafters,
    )


def description_from_pb(message: worker_pb2.DescribeResponse) -> t.Description:
    """A worker's answer to Describe."""
    return t.Description(
        model=message.model,
        fingerprint=message.fingerprint,
        context_length=message.context_length,
        end_token_ids=frozenset(message.end_token_ids),
        head_width=message.head_width,
        num_pieces=message.num_pieces,
        vocabulary_hash=message.vocabulary_hash,
        kv_budget_tokens=message.kv_budget_tokens,
        max_block=message.max_block,
        incarnation=message.incarnation,
        tensor_parallel_size=message.tensor_parallel_size,
        num_sessions=message.num_sessions,
        kv_used_tokens=message.kv_used_tokens,
        drafters=tuple(message.drafters),
    )
