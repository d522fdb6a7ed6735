"""A worker process without weights: python -m harness.hash_worker ROLE PORT VOCABULARY_HASH

The real stream, codec, session table and server; a hash for a model. It is there in a moment, since it never imports
torch, and so can be killed again and again. Stands on its port until it is killed; says "ready" when it serves.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import Hashable, Sequence

from harness import hash_model
from tandem.config import RpcConfig
from tandem.core.blocks import BlockPool
from tandem.core.sessions import Admitted, InvalidCall, Repeated, Session, SessionTable, check_call
from tandem.core.types import (
    Cancel,
    Description,
    Drafted,
    Item,
    Malformed,
    Propose,
    Refusal,
    RefusalReason,
    Release,
    Reply,
    Verdict,
    Verify,
)
from tandem.rpc.serving import Server, server_options
from tandem.rpc.worker_service import DraftServicer, Streams, TargetServicer, WorkerServicer
from tandem.v1 import draft_pb2_grpc, target_pb2_grpc, worker_pb2_grpc

HOST = "127.0.0.1"
MISTAKES = 0.3  # share of the prefixes at which the draft is wrong
STEP_S = 0.002  # between a call and its answer: time in which it can be killed
RPC = RpcConfig()


class HashDevice:
    """What the stream needs behind it; answers on the event loop, a step after the call."""

    def __init__(self, streams: Streams) -> None:
        self.table = SessionTable(BlockPool(512, 4))
        self._streams = streams

    def submit(self, stream: Hashable, items: Sequence[Item]) -> None:
        for item in items:
            match item:
                case Verify() | Propose():
                    for reply in self._replies(stream, item):
                        asyncio.get_running_loop().call_later(STEP_S, self._streams.deliver, [(stream, reply)])
                case Release(session_id):
                    self.table.release(session_id, _now())
                case Cancel() | Malformed():
                    pass  # nothing runs on; a call that is no call gets no answer

    def close_stream(self, stream: Hashable) -> None:
        self.table.close_stream(stream)

    def _replies(self, stream: Hashable, item: Verify | Propose) -> list[Reply]:
        body: Verdict | Drafted | Refusal
        try:
            check_call(item)
            admitted = self.table.admit(item, 17, stream, _now())
        except InvalidCall as error:
            admitted = Refusal(RefusalReason.INVALID, str(error))
        match admitted:
            case Repeated(session):
                return session.replies
            case Refusal() as body:
                return [Reply(item.call.session_id, item.call.number, body)]
            case Admitted(session):
                session.replies = [Reply(item.call.session_id, item.call.number, _answer(item, session))]
                return session.replies


def _answer(item: Verify | Propose, session: Session) -> Verdict | Drafted:
    """Also takes what is speculated into the session, as a model's cache would."""
    prefix = list(session.tokens.ids)
    if isinstance(item, Verify):
        session.tokens.extend(item.block.tokens)
        answer: Verdict | Drafted = hash_model.judge(item, prefix)
    else:
        answer = hash_model.draft(item, prefix, MISTAKES)
        session.tokens.extend(answer.tokens)
    session.cached_len = len(session.tokens)
    return answer


def _describe(vocabulary_hash: str) -> Description:
    return Description(
        model="hash",
        fingerprint="hash",
        context_length=512,
        end_token_ids=frozenset(),
        head_width=hash_model.VOCAB_SIZE,
        num_pieces=hash_model.VOCAB_SIZE,
        vocabulary_hash=vocabulary_hash,
        kv_budget_tokens=2048,
        max_block=17,
        incarnation=uuid.uuid4().hex,
    )


async def serve(role: str, port: int, vocabulary_hash: str) -> None:
    server = Server(server_options(RPC, RPC.max_message_bytes), [f"tandem.v1.{role.capitalize()}"])
    streams, servicer = Streams(), WorkerServicer()
    if role == "draft":
        draft_pb2_grpc.add_DraftServicer_to_server(DraftServicer(streams), server.grpc)
    else:
        target_pb2_grpc.add_TargetServicer_to_server(TargetServicer(streams), server.grpc)
    worker_pb2_grpc.add_WorkerServicer_to_server(servicer, server.grpc)
    await server.start(HOST, port)
    streams.open(HashDevice(streams))
    description = _describe(vocabulary_hash)
    servicer.open(lambda: description, ())
    await server.set_serving(True)
    print("ready", flush=True)  # noqa: T201
    await asyncio.Event().wait()


def _now() -> float:
    return asyncio.get_running_loop().time()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
