"""Garbage instead of a request: gRPC itself would answer UNKNOWN, so unary requests are parsed in a handler of ours."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError


class ParsedInside(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to bytes that are no request of the method they were sent to."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_streaming or handler.request_deserializer is None:
            return handler
        if handler.response_streaming:
            answer = _streaming(handler) if inspect.isasyncgenfunction(handler.unary_stream) else _answering(handler)
            return grpc.unary_stream_rpc_method_handler(answer, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(_answering(handler), None, handler.response_serializer)


def _answering(handler: Any) -> Callable[[bytes, Any], Awaitable[Any]]:
    async def answer(message: bytes, context: Any) -> Any:
        return await (handler.unary_unary or handler.unary_stream)(await _parse(handler, message, context), context)

    return answer


def _streaming(handler: Any) -> Callable[[bytes, Any], AsyncIterator[Any]]:
    async def answer(message: bytes, context: Any) -> AsyncIterator[Any]:
        async for part in handler.unary_stream(await _parse(handler, message, context), context):
            yield part

    return answer


async def _parse(handler: Any, message: bytes, context: Any) -> Any:
    try:
        return handler.request_deserializer(message)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a request of this method")
