"""Real processes and real signals: workers of a hash for a model, which are there again in a moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from harness.hash_model import continuation
from harness.tiny import byte_tokenizer
from harness.waiting import assert_eventually
from harness.way import reserved_port

from coordinator.frontend import Frontend
from faults.asks import Ask
from faults.cluster import CLIENT_OPTIONS, RETRY, Coordinator
from faults.history import History
from faults.invariants import violations
from tandem.client import AsyncClient
from tandem.core.types import Rule

TESTS = Path(__file__).resolve().parents[1]
HOST = "127.0.0.1"


@dataclass
class ProcessWorker:
    """A worker in a process of its own, on a port that stays its own."""

    role: str
    port: int
    vocabulary_hash: str
    process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        command = (sys.executable, "-m", "harness.hash_worker", self.role, str(self.port), self.vocabulary_hash)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent)))}
        self.process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, env=environment, cwd=TESTS.parent
        )
        assert self.process.stdout is not None
        assert await self.process.stdout.readline() == b"ready\n"

    async def kill(self) -> None:
        """Also one that is dead."""
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)


@dataclass
class House:
    """A coordinator in this process, two workers of each kind in their own, and a client."""

    targets: list[ProcessWorker]
    drafts: list[ProcessWorker]
    coordinator: Coordinator
    client: AsyncClient
    history: History = field(default_factory=History)

    def in_use(self, role: str) -> ProcessWorker:
        """The one that has a session, else any."""
        links = [link for link in self.coordinator.pool.links if link.role == role and link.exchange.num_sessions]
        workers = self.targets if role == "target" else self.drafts
        return next((each for each in workers for link in links if each.address == link.address), workers[0])

    async def until_ready(self) -> None:
        await assert_eventually(lambda: self.coordinator.ready, 20.0)


@contextlib.asynccontextmanager
async def running_house() -> AsyncIterator[House]:
    frontend = Frontend(byte_tokenizer())
    async with contextlib.AsyncExitStack() as stack:
        workers = []
        for role in ("target", "target", "draft", "draft"):
            port = stack.enter_context(reserved_port())
            workers.append(ProcessWorker(role, port, frontend.vocabulary_hash))
        await asyncio.gather(*(worker.start() for worker in workers))
        for worker in workers:
            stack.push_async_callback(worker.kill)
        addresses = [worker.address for worker in workers]
        coordinator = Coordinator(addresses[:2], addresses[2:], {}, frontend)
        await coordinator.start()
        stack.push_async_callback(coordinator.kill)
        client = AsyncClient(coordinator.way_in.address, retry=RETRY, channel_options=CLIENT_OPTIONS)
        stack.push_async_callback(client.close)
        house = House(workers[:2], workers[2:], coordinator, client)
        await house.until_ready()
        yield house
    await coordinator.way_in.close()
    frontend.close()


ASKS = [Ask(num_tokens=24, rule=rule, ahead=ahead, k=3)
        for rule, ahead in ((Rule.GREEDY, False), (Rule.COUPLED, True), (Rule.REJECTION, True))]  # fmt: skip


async def hit(house: House, ask: Ask, role: str, after: int, number: signal.Signals) -> None:
    """One request; when so many tokens have come, the worker that it is on gets the signal, until the request ends."""
    target, name = house.history.num_came + after, f"{role} {number.name} {ask.rule.name} {after}"
    output = continuation(ask.prompt, ask.num_tokens)
    request = asyncio.create_task(ask.of(house.client, house.history, name, output))
    await house.history.until_came(target)
    victim = house.in_use(role)
    victim.send(number)
    await request
    if number is signal.SIGSTOP:
        victim.send(signal.SIGCONT)
    else:
        await victim.kill()
        await victim.start()
    await house.until_ready()


@pytest.mark.parametrize("role", ["target", "draft"])
async def test_signals_change_no_text(role: str) -> None:
    """SIGKILL before the first token, in the middle, at the last; SIGSTOP, noticed by keep-alive alone."""
    async with running_house() as house:
        for ask, after in zip(ASKS, (0, 11, 24), strict=True):
            await hit(house, ask, role, after, signal.SIGKILL)
        await hit(house, ASKS[1], role, 5, signal.SIGSTOP)
        assert violations(house.history.events) == []
        assert not house.coordinator.num_open_calls and not house.coordinator.service._ids


@pytest.mark.slow
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.rule.name.lower())
@pytest.mark.parametrize("role", ["target", "draft"])
async def test_sigkill_after_each_token_changes_no_text(role: str, ask: Ask) -> None:
    async with running_house() as house:
        for after in range(0, ask.num_tokens + 1, 3):
            await hit(house, ask, role, after, signal.SIGKILL)
        assert violations(house.history.events) == []


async def test_the_worker_process_has_no_torch() -> None:
    worker = ProcessWorker("target", 0, "")
    await worker.start()
    try:
        assert worker.process is not None
        assert "libtorch" not in Path(f"/proc/{worker.process.pid}/maps").read_text()
    finally:
        await worker.kill()
