"""How much a forward pass of few rows costs, beside transformers' own forward of the same rows over its own cache.

Both see the same tokens and the same random keys and values as context, and take turns, so that whatever else the
machine does meets both.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from tandem.bench.limits import Limits, measure_limits, timed
from tandem.core.plan import SequencePlan, StepPlan
from tandem.model.kv_pool import KVPool
from tandem.model.load import load_model
from tandem.model.pretrained import read_model
from tandem.model.runner import run_step

BLOCK_SIZE = 16
ROWS = (1, 2, 3, 4, 5, 6, 7, 8)
CONTEXTS = (64, 512, 2048)
BATCHES = (1, 4, 16)
QUICK_ROWS = (1, 2, 6)
QUICK_CONTEXTS = (64,)
QUICK_BATCHES = (1, 4)


@dataclass(frozen=True, slots=True)
class Point:
    """One shape of step: `batch` sequences of `context` cached tokens, each fed `rows` tokens."""

    context: int
    batch: int
    rows: int
    tandem_s: tuple[float, ...]
    transformers_s: tuple[float, ...]  # in turn with those of `tandem_s`
    limit_s: float  # from memory bandwidth and arithmetic
    largest_difference: float  # between the two's logits, as a share of the largest logit

    @property
    def ratio(self) -> float:
        return median(self._ratios())

    @property
    def quartiles(self) -> tuple[float, float]:
        """Of the ratio."""
        first, _, third = quantiles(self._ratios(), n=4)
        return first, third

    @property
    def share_of_limit(self) -> float:
        """1: as fast as the machine allows."""
        return self.limit_s / median(self.tandem_s)

    def _ratios(self) -> list[float]:
        return [own / theirs for own, theirs in zip(self.tandem_s, self.transformers_s, strict=True)]


@dataclass(frozen=True, slots=True)
class Report:
    model: str
    kernels: str
    dtype: str
    device: str
    threads: int
    machine: str
    limits: Limits
    points: tuple[Point, ...]

    def growth(self, point: Point) -> float:
        """Tandem's time at this point over its time for one row a sequence."""
        same = (point.context, point.batch)
        single = next(other for other in self.points if (other.context, other.batch) == same)
        return median(point.tandem_s) / median(single.tandem_s)


def run(
    folder: Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    threads: int = 0,
    quick: bool = False,
    repeats: int = 9,
    show: Callable[[Point], None] = lambda point: None,
) -> Report:
    """Measures the model of `folder`, one built like Llama, over rows, contexts and batches; `show` gets each point as
    it is done.

    `threads`: torch threads, 0: all cores. Raises ModelError.
    """
    torch.set_num_threads(threads or os.cpu_count() or 1)
    rivals = _Rivals.load(folder, dtype, device)
    limits = measure_limits(dtype, device)
    points = []
    for context, batch, rows in _shapes(rivals.context_length, quick):
        points.append(rivals.measure(context, batch, rows, limits, repeats))
        show(points[-1])
    kernels = getattr(rivals.tandem, "kernels", "transformers")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"
    return Report(folder.name, kernels, str(dtype), device, torch.get_num_threads(), machine, limits, tuple(points))


def _shapes(context_length: int, quick: bool) -> Iterator[tuple[int, int, int]]:
    """Context, batch and rows of every point; rows change fastest, contexts beyond the model's are left out."""
    contexts, batches, rows = (QUICK_CONTEXTS, QUICK_BATCHES, QUICK_ROWS) if quick else (CONTEXTS, BATCHES, ROWS)
    fitting = [context for context in contexts if context + rows[-1] <= context_length]
    return ((context, batch, count) for context in fitting for batch in batches for count in rows)


@dataclass(slots=True)
class _Rivals:
    """The same weights twice, and the context that both were last given."""

    tandem: nn.Module
    transformers: Any
    context_length: int
    device: str
    num_linear_weights: int  # that every step reads, head included
    shape: tuple[int, int] = (0, 0)  # context, batch
    pool: KVPool | None = None
    cache: Any = None

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: str) -> _Rivals:
        theirs = read_model(folder, dtype=dtype, use_safetensors=True).to(device).eval().requires_grad_(False)
        linears = [part.weight.numel() for part in theirs.modules() if isinstance(part, nn.Linear)]
        own = load_model(folder, dtype, device)
        return cls(own.module, theirs, own.context_length, device, sum(linears))

    def measure(self, context: int, batch: int, rows: int, limits: Limits, repeats: int) -> Point:
        if self.shape != (context, batch):
            self._give_context(context, batch)
        tokens = torch.randint(0, self.transformers.config.vocab_size, (batch, rows))
        plan = _plan(tokens, context)
        own, theirs = self._run_tandem(plan), self._run_transformers(tokens)
        work = (lambda: self._run_tandem(plan)), (lambda: self._run_transformers(tokens))
        pairs = [tuple(timed(one, self.device) for one in work) for _ in range(repeats)]
        return Point(
            context,
            batch,
            rows,
            tuple(pair[0] for pair in pairs),
            tuple(pair[1] for pair in pairs),
            self._limit(context, batch, rows, limits),
            float((own - theirs).abs().max() / theirs.abs().max()),
        )

    @torch.inference_mode()
    def _give_context(self, context: int, batch: int) -> None:
        """Random keys and values, as a prompt of `context` tokens would leave behind."""
        config = self.transformers.config
        stride = _blocks_per_sequence(context) * BLOCK_SIZE
        slots = torch.cat([torch.arange(context) + index * stride for index in range(batch)]).to(self.device)
        self.shape, self.cache, self.pool = (context, batch), DynamicCache(config=config), KVPool(batch * stride)
        for layer in range(config.num_hidden_layers):
            key, value = (self._random_rows(layer, batch, context) for _ in range(2))
            self.cache.update(key, value, layer)
            self.pool.write(layer, slots, key.transpose(0, 1).flatten(1, 2), value.transpose(0, 1).flatten(1, 2))

    def _random_rows(self, layer: int, batch: int, context: int) -> Tensor:
        """[batch, num_kv_heads, context, head_dim]"""
        attention = self.transformers.model.layers[layer].self_attn
        heads = attention.k_proj.out_features // attention.head_dim
        return torch.randn(batch, heads, context, attention.head_dim, device=self.device, dtype=self.transformers.dtype)

    def _run_tandem(self, plan: StepPlan) -> Tensor:
        assert self.pool is not None
        return run_step(self.tandem, self.pool, BLOCK_SIZE, plan)

    @torch.inference_mode()
    def _run_transformers(self, tokens: Tensor) -> Tensor:
        output = self.transformers(input_ids=tokens.to(self.device), cache=self.cache, use_cache=True)
        self.cache.crop(-tokens.shape[1])
        logits: Tensor = output.logits.flatten(0, 1)
        return logits

    def _limit(self, context: int, batch: int, rows: int, limits: Limits) -> float:
        """Seconds for reading each weight and each sequence's context once, and for multiplying rows by them."""
        assert self.pool is not None
        size = self.transformers.dtype.itemsize
        num_bytes = self.num_linear_weights * size + batch * context * self.pool.bytes_per_token
        config = self.transformers.config
        attention = 2 * config.num_hidden_layers * self.transformers.model.layers[0].self_attn.o_proj.in_features
        return limits.seconds(num_bytes, 2 * batch * rows * (self.num_linear_weights + attention * context))


def _plan(tokens: Tensor, context: int) -> StepPlan:
    """All rows of all sequences, each with a run of blocks of its own; every row's logits are wanted."""
    count = _blocks_per_sequence(context)
    rows = [tuple(row) for row in tokens.tolist()]
    blocks = [tuple(range(index * count, (index + 1) * count)) for index in range(len(rows))]
    return StepPlan(tuple(SequencePlan(row, context, own, len(row)) for row, own in zip(rows, blocks, strict=True)))


def _blocks_per_sequence(context: int) -> int:
    return -(-(context + ROWS[-1]) // BLOCK_SIZE)
