"""Dataclasses to protobuf and back: the one package in which messages between services are taken apart."""

from __future__ import annotations

from collections.abc import Iterable

from tandem.core import types as t
from tandem.rpc.codec.calls import propose_from_pb, propose_to_pb, verify_from_pb, verify_to_pb
from tandem.rpc.codec.replies import (
    description_from_pb,
    description_to_pb,
    propose_reply_from_pb,
    propose_reply_to_pb,
    verify_reply_from_pb,
    verify_reply_to_pb,
)
from tandem.v1 import draft_pb2, target_pb2

__all__ = ["DraftCodec", "TargetCodec", "description_from_pb", "description_to_pb"]


class DraftCodec:
    """Messages of the draft stream."""

    @staticmethod
    def request(items: Iterable[t.Item]) -> draft_pb2.ProposeRequest:
        return draft_pb2.ProposeRequest(items=[propose_to_pb(item) for item in items])

    @staticmethod
    def items(message: draft_pb2.ProposeRequest) -> list[t.Item]:
        return [propose_from_pb(item) for item in message.items]

    @staticmethod
    def response(replies: Iterable[t.Reply]) -> draft_pb2.ProposeResponse:
        return draft_pb2.ProposeResponse(replies=[propose_reply_to_pb(reply) for reply in replies])

    @staticmethod
    def replies(message: draft_pb2.ProposeResponse) -> list[t.Reply]:
        return [propose_reply_from_pb(reply) for reply in message.replies]


class TargetCodec:
    """Messages of the target stream."""

    @staticmethod
    def request(items: Iterable[t.Item]) -> target_pb2.VerifyRequest:
        return target_pb2.VerifyRequest(items=[verify_to_pb(item) for item in items])

    @staticmethod
    def items(message: target_pb2.VerifyRequest) -> list[t.Item]:
        return [verify_from_pb(item) for item in message.items]

    @staticmethod
    def response(replies: Iterable[t.Reply]) -> target_pb2.VerifyResponse:
        return target_pb2.VerifyResponse(replies=[verify_reply_to_pb(reply) for reply in replies])

    @staticmethod
    def replies(message: target_pb2.VerifyResponse) -> list[t.Reply]:
        return [verify_reply_from_pb(reply) for reply in message.replies]
