"""Calls a coordinator: requests from options, chunks as they come."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import grpc

from tandem.v1 import coordinator_pb2 as pb
from tandem.v1 import coordinator_pb2_grpc

STATUS_S = 10.0  # longest wait for a Status


class Lookahead(StrEnum):
    """When the next block is drafted."""

    OFF = "off"
    CHAIN = "chain"


_LOOKAHEADS = {None: pb.LOOKAHEAD_UNSPECIFIED, Lookahead.OFF: pb.LOOKAHEAD_OFF, Lookahead.CHAIN: pb.LOOKAHEAD_CHAIN}


@dataclass(frozen=True, slots=True)
class Wishes:
    """How to generate; None leaves the choice to the coordinator."""

    max_tokens: int | None = None
    num_tokens: int | None = None  # per block
    lookahead: Lookahead | None = None
    temperature: float | None = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()


def text_request(text: str, wishes: Wishes) -> pb.GenerateRequest:
    """A request that continues `text` as it is."""
    return _with_wishes(pb.GenerateRequest(text=text), wishes)


def chat_request(messages: Sequence[tuple[str, str]], wishes: Wishes) -> pb.GenerateRequest:
    """A request for the next turn after `messages`, each a role and its content."""
    turns = [pb.Message(role=role, content=content) for role, content in messages]
    return _with_wishes(pb.GenerateRequest(chat=pb.Chat(messages=turns)), wishes)


def _with_wishes(request: pb.GenerateRequest, wishes: Wishes) -> pb.GenerateRequest:
    request.sampling.MergeFrom(pb.SamplingParams(temperature=wishes.temperature, seed=wishes.seed))
    request.stopping.MergeFrom(pb.StoppingParams(max_tokens=wishes.max_tokens, stop=wishes.stop))
    lookahead = _LOOKAHEADS[wishes.lookahead]
    request.speculation.MergeFrom(pb.SpeculationParams(num_tokens=wishes.num_tokens, lookahead=lookahead))
    return request


class Client:
    """One connection to a coordinator. Calls raise grpc.RpcError."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = coordinator_pb2_grpc.CoordinatorStub(channel)

    def generate(self, request: pb.GenerateRequest) -> Generator[pb.GenerateChunk, None, None]:
        """The chunks of one generation; leaving early cancels it."""
        call = self._stub.Generate(request)
        try:
            yield from call
        finally:
            call.cancel()

    def status(self) -> pb.StatusResponse:
        response: pb.StatusResponse = self._stub.Status(pb.StatusRequest(), timeout=STATUS_S)
        return response


@contextmanager
def connect(address: str) -> Iterator[Client]:
    """A client of the coordinator at HOST:PORT."""
    # A proxy for the web would swallow calls to one's own machine.
    with grpc.insecure_channel(address, (("grpc.enable_http_proxy", 0),)) as channel:
        yield Client(channel)
