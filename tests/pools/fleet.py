"""Several workers of each role, a resolver that says what a test wants, and requests whose texts are known."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Collection, Sequence

from harness.services import Coordinator, LocalWorker
from harness.tiny import reference

PROMPTS = [tuple(b"hello world"), (9,), tuple(b"once upon"), (200, 201), (7,) * 20, tuple(b"abc")]
NUM_TOKENS = 60


class Names:
    """A resolver. Names stand for the workers given; a port is the worker's own, whatever was asked for."""

    def __init__(self, **workers: Sequence[LocalWorker]) -> None:
        self.records = {name: list(found) for name, found in workers.items()}
        self.is_down = False
        self.num_asked = 0

    async def __call__(self, host: str, port: int) -> Collection[str]:
        self.num_asked += 1
        if self.is_down:
            raise socket.gaierror(socket.EAI_AGAIN, "the resolver is down")
        return [worker.address for worker in self.records[host]]


@contextlib.asynccontextmanager
async def workers(role: str, num_workers: int, name: str = "") -> AsyncIterator[list[LocalWorker]]:
    """Running workers; stopped at the end, where a test has not done so."""
    found = [LocalWorker(role, name or {"target": "target", "draft": "near"}[role]) for _ in range(num_workers)]
    try:
        for worker in found:
            await worker.start()
        yield found
    finally:
        for worker in found:
            await worker.stop()


async def until_joined(coordinator: Coordinator, num_targets: int, num_drafts: int) -> None:
    """Returns once as many workers take sessions."""
    pool = coordinator.pool
    async with asyncio.timeout(20.0):
        await pool.targets.until(lambda: len(pool.targets.open) == num_targets)
        await pool.drafts.until(lambda: len(pool.drafts.open) == num_drafts)


async def ask_all(coordinator: Coordinator, num_requests: int = len(PROMPTS)) -> None:
    """Several requests at once, each of which gives the target's own text."""
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(num_requests)]
    answers = await asyncio.gather(*(coordinator.generate(prompt, NUM_TOKENS, k=2) for prompt in prompts))
    assert [tokens for tokens, _ in answers] == [reference(prompt, NUM_TOKENS) for prompt in prompts]


class Traffic:
    """Requests that never stop coming while it is entered; the first that fails, or says something else, fails all."""

    def __init__(self, coordinators: Sequence[Coordinator], num_at_once: int = 6) -> None:
        self._coordinators = coordinators
        self._num_at_once = num_at_once
        self.num_answers = 0

    async def __aenter__(self) -> Traffic:
        self._goes_on = True
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(self._num_at_once)]
        return self

    async def __aexit__(self, *error: object) -> None:
        self._goes_on = False
        await asyncio.gather(*self._tasks)

    async def goes_on(self, num_answers: int = 3) -> None:
        """Returns after as many answers more."""
        goal = self.num_answers + num_answers
        while self.num_answers < goal:
            done, _ = await asyncio.wait(self._tasks, timeout=0.01)
            for task in done:
                task.result()

    async def _ask(self, number: int) -> None:
        coordinator, prompt = self._coordinators[number % len(self._coordinators)], PROMPTS[number % len(PROMPTS)]
        while self._goes_on:
            tokens, _ = await coordinator.generate(prompt, NUM_TOKENS, k=2)
            assert tokens == reference(prompt, NUM_TOKENS)
            self.num_answers += 1


def has_worked(worker: LocalWorker) -> bool:
    """Whether a session was ever placed on it, since it was started."""
    return worker.engine.table._num_created > 0
