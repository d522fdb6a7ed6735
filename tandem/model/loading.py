"""What both kinds of worker do to get from settings to a model that runs."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tandem.config import ModelConfig, WorkerConfig, cache_folder
from tandem.core.blocks import BlockPool
from tandem.core.sessions import SessionTable
from tandem.core.types import Description
from tandem.errors import ConfigError
from tandem.model.cuda_graphs import CudaGraphs
from tandem.model.fixed_shapes import Record, why_not
from tandem.model.kv_pool import default_kv_tokens
from tandem.model.load import load_model
from tandem.model.loaded import LoadedModel
from tandem.model.resolve import resolve
from tandem.model.runner import Runner
from tandem.model.tokenizer import load_tokenizer, pieces
from tandem.process import keep_freed_memory

DTYPES = {name: getattr(torch, name) for name in ("float32", "float64", "bfloat16", "float16")}
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadyModel:
    """A model with memory for its sessions."""

    model: LoadedModel
    runner: Runner
    table: SessionTable
    pieces: list[str]

    @property
    def num_embeddings(self) -> int:
        """Ids below this may be fed."""
        module: Any = self.model.module
        return int(module.get_input_embeddings().num_embeddings)


def served_name(name: str) -> str:
    """What a model is called by: the last part of its path or hub name."""
    return Path(name).name or name


def set_threads(settings: WorkerConfig) -> None:
    """Torch threads of this process; 0: all cores."""
    torch.set_num_threads(settings.threads or os.cpu_count() or 1)


def check_device(device: str) -> None:
    """Raises ConfigError where torch has no such device."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch was built without CUDA
        raise ConfigError(f"device: {device}: {str(error).partition(chr(10))[0]}") from error


def open_model(
    name: str,
    models: ModelConfig,
    settings: WorkerConfig,
    *,
    tensor_parallel_size: int = 1,
    agree: Callable[[int], int] = int,
) -> ReadyModel:
    """Resolves and loads `name`; draft layers are completed by `models.target`. Raises ModelError.

    Every rank of a group calls this; from the tokens for which it has memory, `agree` makes what all have.
    """
    set_threads(settings)
    keep_freed_memory()
    folder = resolve(name, cache_folder())
    target = resolve(models.target, cache_folder()) if models.target else None
    model = load_model(
        folder,
        DTYPES[models.dtype],
        models.device,
        target,
        name=served_name(name),
        tensor_parallel_size=tensor_parallel_size,
        cuda_graphs=models.cuda_graphs and tensor_parallel_size == 1,
    )
    tokens = agree(settings.kv_tokens or default_kv_tokens(model.kv_bytes_per_token, models.device))
    pool = BlockPool(max(tokens // settings.block_size, 1), settings.block_size)
    record = _recorder(model, tensor_parallel_size) if models.cuda_graphs else None
    runner = Runner(model, pool.num_blocks, pool.block_size, record)
    return ReadyModel(model, runner, SessionTable(pool, settings.lease_s), _pieces(folder, target))


def _recorder(model: LoadedModel, tensor_parallel_size: int) -> Record | None:
    """What records the steps of `model`; None, and a line in the log, where that cannot be."""
    reason = "ranks share it" if tensor_parallel_size > 1 else why_not(model.module)
    if reason:
        _log.warning("no CUDA graphs for %s: %s", model.name, reason)
        return None
    _log.info("CUDA graphs for the steps of few rows of %s", model.name)
    return CudaGraphs(model.device)


def describe(ready: ReadyModel, max_block: int, drafters: tuple[str, ...] = ()) -> Description:
    """What a worker says of this model; the rest is filled in while it runs."""
    model, pool = ready.model, ready.table.pool
    return Description(
        model=model.name,
        fingerprint=model.fingerprint,
        context_length=model.context_length,
        end_token_ids=model.end_token_ids,
        head_width=model.head_width,
        num_pieces=model.num_pieces,
        vocabulary_hash=model.vocabulary_hash,
        kv_budget_tokens=pool.num_blocks * pool.block_size,
        max_block=max_block,
        incarnation="",
        drafters=drafters,
    )


def _pieces(folder: Path, target: Path | None) -> list[str]:
    own = folder if (folder / "tokenizer_config.json").exists() else target
    return pieces(load_tokenizer(own or folder))
