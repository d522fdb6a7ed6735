"""What a worker says of its health, as it changes (grpc.health.v1 Watch)."""

from __future__ import annotations

from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tandem.errors import WorkerLost

LIVENESS = "tandem.v1.Liveness"  # the name of a worker's other health: whether its step loop goes on


class HealthWatch:
    """One watch of one service; to be closed."""

    def __init__(self, channel: Any, service: str) -> None:
        self._call = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service))

    async def changed(self) -> bool:
        """Whether it is SERVING, told at first and whenever that changes.

        Raises WorkerLost when the worker ends the watch, grpc.aio.AioRpcError when it is not reached.
        """
        answer = await self._call.read()
        if answer is grpc.aio.EOF:
            raise WorkerLost("the worker ended the watch of its health")
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def aclose(self) -> None:
        """Ends the watch: a call that is only forgotten would stay."""
        self._call.cancel()
