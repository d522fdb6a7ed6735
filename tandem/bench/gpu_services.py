"""The three services on one device: what they say with a draft, against what they say without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from tandem.bench.random_models import Shape, save_pair
from tandem.cli.launch import coordinator_address, launched
from tandem.cli.local import Flags, available_cores, local_config
from tandem.client import Client, Generation

SMALL: Shape = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1024,
    "initializer_range": 0.1,
}
PROMPTS = ("A target judges, a draft proposes.", "Every verdict commits at least one token.", "Once upon a time")
SEEDS = {"greedy": None, "coupled": 7}
BLOCK_LEN = 4
_KV_TOKENS = 8192
_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Of one rule, over all prompts; each prompt was answered plainly and with a draft, in turn."""

    rule: str
    num_prompts: int
    num_same: int  # drafted texts that are the plain ones, token by token
    num_drafted: int
    num_accepted: int
    num_fallbacks: int
    plain_tokens_per_s: float
    drafted_tokens_per_s: float


def ask_services(shape: Shape, device: str, cuda_graphs: bool, num_tokens: int) -> Iterator[Answers]:
    """In float64, so that a verify of many rows and steps of one agree on every token."""
    with _services(shape, device, cuda_graphs) as address, Client(address) as client:
        _ask(client, PROMPTS[0], None, BLOCK_LEN, num_tokens)  # shapes are recorded when they are first met
        for rule, seed in SEEDS.items():
            yield _answers(client, rule, seed, num_tokens)


@contextmanager
def _services(shape: Shape, device: str, cuda_graphs: bool) -> Iterator[str]:
    """The coordinator's address while entered."""
    any_port = {"port": 0, "metrics_port": 0}
    worker = {**any_port, "kv_tokens": _KV_TOKENS}
    with TemporaryDirectory(prefix="tandem-random-") as folder:
        target, draft = save_pair(Path(folder), shape, torch.float64)
        models = {
            "target": str(target),
            "draft": str(draft),
            "dtype": "float64",
            "device": device,
            "cuda_graphs": cuda_graphs,
        }
        flags: Flags = {"model": models, "coordinator": any_port, "draft": worker, "target": worker}
        config = local_config(None, flags, with_draft=True, num_cores=available_cores())
        with launched(config):
            yield coordinator_address(config)


def _answers(client: Client, rule: str, seed: int | None, num_tokens: int) -> Answers:
    pairs = [[_ask(client, prompt, seed, length, num_tokens) for length in (0, BLOCK_LEN)] for prompt in PROMPTS]
    plain, drafted = zip(*pairs, strict=True)
    stats = [answer.speculation for answer in drafted]
    return Answers(
        rule,
        len(pairs),
        sum(one.token_ids == other.token_ids and one.text == other.text for one, other in pairs),
        sum(each.num_draft_tokens for each in stats),
        sum(each.num_accepted_tokens for each in stats),
        sum(sum(each.num_fallbacks.values()) for each in stats),
        _speed(plain),
        _speed(drafted),
    )


def _ask(client: Client, prompt: str, seed: int | None, block_len: int, num_tokens: int) -> Generation:
    return client.generate(
        prompt,
        temperature=0.0 if seed is None else 1.0,
        seed=seed,
        max_tokens=num_tokens,
        ignore_eos=True,
        num_draft_tokens=block_len,
        timeout_s=_WAIT_S,
    )


def _speed(answers: tuple[Generation, ...]) -> float:
    """Tokens per second of verifies, prompts and waits."""
    return sum(len(answer.token_ids) for answer in answers) / sum(answer.timing.total_s for answer in answers)
