"""Replies, from worker to coordinator, and what a worker says of itself."""

from __future__ import annotations

from tandem.core import types as t
from tandem.rpc.codec.calls import q_from_pb, q_to_pb
from tandem.v1 import coordinator_pb2 as public
from tandem.v1 import draft_pb2, target_pb2, worker_pb2


def _refusal_to_pb(refusal: t.Refusal) -> worker_pb2.Refusal:
    return worker_pb2.Refusal(
        reason=f"REFUSAL_REASON_{refusal.reason.name}", have=refusal.have, message=refusal.message
    )


def _refusal_from_pb(message: worker_pb2.Refusal) -> t.Refusal:
    try:
        reason = t.RefusalReason(message.reason)
    except ValueError:
        reason = t.RefusalReason.FAULT
    return t.Refusal(reason, message.message, message.have)


def propose_reply_to_pb(reply: t.Reply) -> draft_pb2.ProposeReply:
    """One reply of a draft stream."""
    message = draft_pb2.ProposeReply(
        session_id=reply.session_id, call=reply.number, queue_ns=reply.queue_ns, compute_ns=reply.compute_ns
    )
    body = reply.body
    if isinstance(body, t.Refusal):
        message.refusal.CopyFrom(_refusal_to_pb(body))
    else:
        assert isinstance(body, t.Drafted)
        block = worker_pb2.Block(tokens=body.tokens, q=q_to_pb(body.q), drafter=body.drafter)
        message.drafted.CopyFrom(draft_pb2.Drafted(block=block, done=body.done, offset=body.offset))
    return message


def propose_reply_from_pb(message: draft_pb2.ProposeReply) -> t.Reply:
    """One reply of a draft stream."""
    body: t.Drafted | t.Refusal
    if message.WhichOneof("body") == "drafted":
        block = message.drafted.block
        body = t.Drafted(
            tuple(block.tokens), q_from_pb(block.q), block.drafter, message.drafted.done, message.drafted.offset
        )
    else:
        body = _refusal_from_pb(message.refusal)
    return t.Reply(message.session_id, message.call, body, message.queue_ns, message.compute_ns)


def logprobs_to_pb(logprobs: t.Logprobs) -> public.TokenLogprobs:
    """One emitted token's log probability and those of the most likely tokens."""
    top = [public.TopLogprob(token_id=token, logprob=logprob) for token, logprob in logprobs.top]
    return public.TokenLogprobs(logprob=logprobs.logprob, top=top)


def _logprobs_from_pb(message: public.TokenLogprobs) -> t.Logprobs:
    return t.Logprobs(message.logprob, tuple((top.token_id, top.logprob) for top in message.top))


def verify_reply_to_pb(reply: t.Reply) -> target_pb2.VerifyReply:
    """One reply of a target stream."""
    message = target_pb2.VerifyReply(
        session_id=reply.session_id, call=reply.number, queue_ns=reply.queue_ns, compute_ns=reply.compute_ns
    )
    body = reply.body
    if isinstance(body, t.Refusal):
        message.refusal.CopyFrom(_refusal_to_pb(body))
    else:
        assert isinstance(body, t.Verdict)
        logprobs = [logprobs_to_pb(row) for row in body.logprobs]
        verdict = target_pb2.Verdict(
            num_accepted=body.num_accepted,
            next_token=body.next_token,
            logprobs=logprobs,
            num_reused=body.num_reused,
        )
        message.verdict.CopyFrom(verdict)
    return message


def verify_reply_from_pb(message: target_pb2.VerifyReply) -> t.Reply:
    """One reply of a target stream."""
    body: t.Verdict | t.Refusal
    if message.WhichOneof("body") == "verdict":
        verdict = message.verdict
        logprobs = tuple(_logprobs_from_pb(row) for row in verdict.logprobs)
        body = t.Verdict(verdict.num_accepted, verdict.next_token, logprobs, verdict.num_reused)
    else:
        body = _refusal_from_pb(message.refusal)
    return t.Reply(message.session_id, message.call, body, message.queue_ns, message.compute_ns)


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
