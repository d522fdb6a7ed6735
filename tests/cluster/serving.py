"""Requests to a worker process, over gRPC and through the coordinator's decode loop; and the same on one rank, here."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import scripted
from harness.carriers import Carrier, DraftCarrier, TargetCarrier
from harness.generation import Generated, Workers, generate
from harness.tiny import byte_tokenizer, save_near
from harness.virtual_time import now_ns, run_virtual
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from coordinator.patience import Patience
from tandem.config import RpcConfig
from tandem.core.types import Description, Refusal, RefusalReason, Reply, Rule, Sampling
from tandem.model.engine import Engine
from tandem.model.load import load_model
from tandem.model.loaded import LoadedModel
from tandem.model.runner import Runner
from tandem.rpc.link import Link

BLOCK_SIZE = 16
SAMPLED = Sampling(temperature=1.2, top_k=40)
GREEDY = Sampling(temperature=0.0)
RPC = RpcConfig(keepalive_s=1.0, keepalive_timeout_s=1.0)


@dataclass(frozen=True)
class Models:
    target: Path
    draft: Path


@dataclass(frozen=True)
class Request:
    number: int
    rule: Rule = Rule.GREEDY
    num_prompt: int = 20
    num_tokens: int = 24

    @property
    def prompt(self) -> list[int]:
        return [(7 * self.number + 3 * index * index) % 256 for index in range(self.num_prompt)]


def save_models(folder: Path) -> Models:
    """Eight heads in float64, and a draft that is right about half of the time."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    target = folder / "target"
    LlamaForCausalLM(config).to(torch.float64).save_pretrained(target)
    byte_tokenizer().save_pretrained(target)
    return Models(target, save_near(folder / "draft", target, noise=0.012))


@functools.cache
def loaded(folder: Path) -> LoadedModel:
    return load_model(folder, torch.float64, "cpu")


def engine(role: str, folder: Path) -> Engine:
    model = loaded(folder)
    make = scripted.target_engine if role == "target" else scripted.draft_engine
    return make(
        Runner(model, 256, BLOCK_SIZE),
        model.num_pieces,
        now_ns,
        num_blocks=256,
        block_size=BLOCK_SIZE,
        context=model.context_length,
        num_embeddings=model.head_width,
    )


class _Open:
    async def why_not(self, link: Link, description: Description) -> str:
        return ""


class Remote:
    """Stands where the harness has a carrier; counts what the worker refuses, and calls that end as "worker lost"."""

    def __init__(self, link: Link) -> None:
        self.exchange = link.exchange
        self.refusals: Counter[RefusalReason] = Counter()
        self.num_lost_calls = 0
        self._receive, self._lose = link.exchange.receive, link.exchange.lose
        link.exchange.receive, link.exchange.lose = self.receive, self.lose  # type: ignore[method-assign]

    def receive(self, replies: Sequence[Reply]) -> None:
        self.refusals.update(reply.body.reason for reply in replies if isinstance(reply.body, Refusal))
        self._receive(replies)

    def lose(self, reason: str) -> None:
        self.num_lost_calls += len(self.exchange._calls)
        self._lose(reason)


@contextlib.asynccontextmanager
async def joined(address: str, draft: Path | None) -> AsyncIterator[Workers]:
    """The worker at `address`, with a draft beside it in this process."""
    link = Link("target", address, RPC, _Open())
    target: Any = Remote(link)
    carrier = DraftCarrier(lambda: engine("draft", draft)) if draft else None
    running = asyncio.create_task(link.run())
    patience = Patience(worker_s=400.0, memory_s=400.0)
    try:
        async with carrier.running() if carrier else contextlib.nullcontext():
            await asyncio.wait_for(link.exchange.wait_connected(), 120.0)
            yield Workers(target, carrier, draft_wait_s=240.0, patience=patience)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ask(workers: Workers, request: Request, **options: Any) -> Generated:
    sampling = GREEDY if request.rule is Rule.GREEDY else SAMPLED
    return await generate(
        workers,
        request.prompt,
        max_tokens=request.num_tokens,
        k=4,
        rule=request.rule,
        sampling=sampling,
        seed=request.number,
        session_id=request.number.to_bytes(8, "big") * 2 if "session_id" not in options else options.pop("session_id"),
        **options,
    )


async def ask_greedy(workers: Workers, prompt: Sequence[int], num_tokens: int) -> Generated:
    """Without a draft."""
    return await generate(workers, prompt, max_tokens=num_tokens, k=0)


def logits(folder: Path, tokens: Sequence[int]) -> torch.Tensor:
    """transformers' own, [tokens, vocabulary], of a whole text at once."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        rows: torch.Tensor = module(torch.tensor([tokens])).logits[0]
    return rows


async def alone(models: Models, request: Request) -> tuple[int, ...]:
    """What one rank says, in this process and in virtual time."""
    return await asyncio.to_thread(_alone, models, request)


def _alone(models: Models, request: Request) -> tuple[int, ...]:

    async def run() -> Generated:
        target: Carrier = TargetCarrier(lambda: engine("target", models.target))
        workers = Workers(target, DraftCarrier(lambda: engine("draft", models.draft)))
        async with workers.running():
            return await ask(workers, request)

    return tuple(run_virtual(run()).tokens)
