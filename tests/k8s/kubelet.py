"""One pod, kept as a kubelet keeps it: probes, restarts, and the order of a departure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from k8s.container import Container
from k8s.manifests import Pod
from tandem.rpc.serving import SERVING

_log = logging.getLogger(__name__)
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))


async def answers(address: str, probe: Mapping[str, Any]) -> bool:
    """One gRPC probe, on a connection of its own."""
    port, service = probe["grpc"]["port"], probe["grpc"]["service"]
    async with grpc.aio.insecure_channel(f"{address}:{port}", options=_OPTIONS) as channel:
        try:
            request = health_pb2.HealthCheckRequest(service=service)
            answer = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe["timeoutSeconds"])
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == SERVING)


class Kubelet:
    """Runs one pod until `depart`. `changed` is called when its readiness changes."""

    def __init__(
        self, name: str, template: Pod, address: str, container: Container, changed: Callable[[], None]
    ) -> None:
        self.name, self.template, self.address = name, template, address
        self.ready = False
        self.restarted = False
        self.container = container
        self._changed = changed
        self._departing = False
        self._task = asyncio.create_task(self._run())

    async def depart(self) -> bool:
        """preStop, SIGTERM, SIGKILL; whether the process ended by itself, in time. Not probed any more."""
        began = asyncio.get_running_loop().time()
        self._set_ready(False)
        self._departing = True
        self._task.cancel()
        await asyncio.sleep(self.template.stop_pause_s)
        grace_s = self.template.spec["terminationGracePeriodSeconds"] - self.template.stop_pause_s
        clean = await self.container.stop(grace_s)
        _log.info("%s left after %.1f s", self.name, asyncio.get_running_loop().time() - began)
        return clean

    def close(self) -> None:
        self._task.cancel()
        self.container.remove()

    async def _run(self) -> None:
        while True:
            self.container.start()
            ended = asyncio.create_task(self.container.ended())
            probes = asyncio.create_task(self._probe())
            try:
                await asyncio.wait({ended, probes}, return_when=asyncio.FIRST_COMPLETED)
                why = f"exit {ended.result()}" if ended.done() else probes.result()
            finally:
                ended.cancel()
                probes.cancel()
            _log.warning("%s is started anew: %s", self.name, why)
            self._set_ready(False)
            self.restarted = True
            if not ended.done():
                await self.container.stop(self.template.spec["terminationGracePeriodSeconds"])

    async def _probe(self) -> str:
        """Why the container must be started anew."""
        container = self.template.container
        if not await self._until(container["startupProbe"], True):
            return "it did not start in time"
        readiness = asyncio.create_task(self._follow_readiness(container["readinessProbe"]))
        try:
            await self._until(container["livenessProbe"], False)
            return "it is not alive"
        finally:
            readiness.cancel()

    async def _until(self, probe: Mapping[str, Any], success: bool) -> bool:
        """Probes until one success, if `success` is wanted; False after as many failures in a row as are allowed."""
        num_failures = 0
        while num_failures < probe["failureThreshold"]:
            healthy = await answers(self.address, probe)
            if healthy and success:
                return True
            num_failures = 0 if healthy else num_failures + 1
            await asyncio.sleep(probe["periodSeconds"])
        return False

    async def _follow_readiness(self, probe: Mapping[str, Any]) -> None:
        num_failures = 0
        while True:
            healthy = await answers(self.address, probe)
            num_failures = 0 if healthy else num_failures + 1
            if healthy or num_failures >= probe["failureThreshold"]:
                self._set_ready(healthy)
            await asyncio.sleep(probe["periodSeconds"])

    def _set_ready(self, ready: bool) -> None:
        if ready != self.ready and not self._departing:  # a late probe brings no address back
            _log.info("%s is %s", self.name, "ready" if ready else "not ready")
            self.ready = ready
            self._changed()
