"""PYTHONPATH=tests python -m cluster.step_time: step times of one and of two ranks, and what of them is communication.

A random Llama of 110 million weights in float32, its step fed with 1, 5 and 128 rows of one sequence. Communication is
the time that rank 0 spends in collectives, waiting for the other rank included.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed._functional_collectives as functional
from harness.tiny import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from tandem.config import Config
from tandem.core.plan import SequencePlan, StepPlan
from tandem.model.engine import Forward
from tandem.model.loading import open_model
from target_worker.rebuild import Rebuild
from target_worker.tensor_parallel import TensorParallel

START, BLOCKS, ROWS, REPEATS = 80, tuple(range(16)), (1, 5, 128), 9


class Stopwatch:
    """Sums up the time spent in what it wraps."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **options)
            finally:
                self.spent_s += time.perf_counter() - began

        return timed


def save_model(folder: Path) -> Path:
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=8,
        num_key_value_heads=4,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def measure(model: Forward, clock: Stopwatch) -> dict[int, tuple[float, float]]:
    """Rows -> milliseconds of a step, and of its communication."""
    model.forward(StepPlan((SequencePlan(tuple(range(START)), 0, BLOCKS, 1),)))
    return {rows: _step(model, clock, StepPlan((SequencePlan((7,) * rows, START, BLOCKS, rows),))) for rows in ROWS}


def _step(model: Forward, clock: Stopwatch, plan: StepPlan) -> tuple[float, float]:
    times, spent = [], []
    for _ in range(REPEATS):
        clock.spent_s, began = 0.0, time.perf_counter()
        model.forward(plan)
        times.append(1e3 * (time.perf_counter() - began))
        spent.append(1e3 * clock.spent_s)
    return statistics.median(times), statistics.median(spent)


def main() -> None:
    clock = Stopwatch()
    torch.distributed.all_reduce = clock.wrap(torch.distributed.all_reduce)
    torch.distributed.all_gather = clock.wrap(torch.distributed.all_gather)
    functional.wait_tensor = clock.wrap(functional.wait_tensor)
    with tempfile.TemporaryDirectory() as folder:
        shared = {"model": {"target": str(save_model(Path(folder)))}}
        target = {"kv_tokens": 512, "cpus_per_rank": 0.25}
        alone = Config(**shared, target={**target, "threads": 1})
        one = measure(open_model(alone.model.target, alone.model, alone.target).runner, clock)
        config = Config(**shared, target={**target, "threads": 2, "tensor_parallel_size": 2})
        parallel = TensorParallel(config, Rebuild(asyncio.Event()), lambda: None)
        two = measure(parallel.open()[1], clock)
        parallel.close()
    sys.stdout.write("| rows | 1 rank, ms | 2 ranks, ms | of that communication |\n|---|---|---|---|\n")
    for rows in ROWS:
        (before, _), (after, spent) = one[rows], two[rows]
        sys.stdout.write(f"| {rows} | {before:.0f} | {after:.0f} | {100 * spent / after:.0f} % |\n")


if __name__ == "__main__":
    main()
