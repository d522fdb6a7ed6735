"""The coordinator's gRPC handlers: bytes in, messages out, every exception a status."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from coordinator.request_log import RequestLog
from coordinator.service import CoordinatorService
from tandem.errors import RequestError
from tandem.logs import escaped
from tandem.rpc.errors import Context, abort

SERVICE_NAME = "tandem.v1.Coordinator"
_log = logging.getLogger(__name__)


class Door:
    """Answers UNAVAILABLE until a service is put behind it."""

    def __init__(self) -> None:
        self.service: CoordinatorService | None = None

    def handlers(self) -> grpc.GenericRpcHandler:
        """Handlers that parse their own requests, so that garbage becomes INVALID_ARGUMENT."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Generate": grpc.unary_stream_rpc_method_handler(self._generate, None, _serialize),
                "Status": grpc.unary_unary_rpc_method_handler(self._status, None, _serialize),
            },
        )

    async def _generate(self, message: bytes, context: Context) -> AsyncIterator[Any]:
        service = await self._ready(context)
        remaining_s = context.time_remaining()
        if remaining_s is not None and remaining_s <= 0:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline had passed")
        log = RequestLog(service.metrics)
        try:
            async with contextlib.aclosing(service.generate(message, log)) as chunks:
                async for chunk in chunks:
                    yield chunk
        except asyncio.CancelledError:
            log.failed("cancelled")
            raise
        except RequestError as error:
            log.failed(error.status.name.lower())
            await abort(context, error)
        except Exception:
            _log.exception("request %s failed", escaped(log.request_id))
            log.failed("internal")
            await context.abort(grpc.StatusCode.INTERNAL, "the request failed; the log says why")

    async def _status(self, message: bytes, context: Context) -> Any:
        service = await self._ready(context)
        try:
            return await service.status()
        except Exception:
            _log.exception("Status failed")
            await context.abort(grpc.StatusCode.INTERNAL, "Status failed; the log says why")

    async def _ready(self, context: Context) -> CoordinatorService:
        if self.service is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the coordinator is starting")
        assert self.service is not None
        return self.service


def _serialize(message: Any) -> bytes:
    encoded: bytes = message.SerializeToString()
    return encoded
