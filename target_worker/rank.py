"""What every rank of a group does: join, load its shard of the model, agree on the memory; all but rank 0 follow."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from tandem.config import Config, ModelConfig, TargetConfig
from tandem.errors import ConfigError
from tandem.logs import set_up
from tandem.model.loading import DTYPES, ReadyModel, open_model
from tandem.model.pretrained import read_config, skeleton
from target_worker.broadcast import run_plans
from target_worker.process_group import Placement, PlanChannel, all_reduce_min, connect_store, join_process_group
from target_worker.watchdog import Watchdog

_PR_SET_PDEATHSIG = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank's shard of the model, and its end of the channel."""

    ready: ReadyModel
    channel: PlanChannel


def open_rank(placement: Placement, store: Any, models: ModelConfig, settings: TargetConfig) -> Rank:
    """Returns once every rank has loaded. Raises ModelError, or what torch raises where a rank is lost."""
    gpu, num_local = placement.gpu, placement.local_world_size
    if gpu is not None:
        os.environ["LOCAL_RANK"] = str(gpu)  # transformers binds the device by it
        models = models.model_copy(update={"device": f"cuda:{gpu}"})
        torch.cuda.set_device(gpu)
    threads = max(1, (settings.threads or os.cpu_count() or 1) // num_local)
    # Twice: a rank's own timer comes first, and ends the process without what torch does with a collective that failed.
    channel = join_process_group(placement, store, 2 * settings.step_timeout_s)
    _log_ranks(placement, store)
    sharing = num_local if gpu is None and not settings.kv_tokens else 1  # of one machine's memory
    ready = open_model(
        models.target,
        models,
        settings.model_copy(update={"threads": threads}),
        tensor_parallel_size=placement.world_size,
        agree=lambda num_tokens: all_reduce_min(num_tokens // sharing),
    )
    return Rank(ready, channel)


def _log_ranks(placement: Placement, store: Any) -> None:
    """Has rank 0's log name the process of every rank."""
    store.set(f"rank {placement.rank}", f"process {os.getpid()} on {placement.address}")
    if placement.rank == 0:
        for rank in range(placement.world_size):
            _log.info("rank %d of %d is %s", rank, placement.world_size, store.get(f"rank {rank}").decode())


def check_degree(folder: Path, size: int) -> None:
    """Raises ConfigError unless every rank can have as many heads as the others."""
    config = read_config(folder).get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    for count, kind in ((heads, "attention heads"), (kv_heads, "key/value heads")):
        if count % size:
            raise ConfigError(f"target.tensor_parallel_size: {size} ranks cannot share {count} {kind} of {folder.name}")


def shard_bytes(folder: Path, dtype: str, size: int) -> int:
    """Memory of one rank's weights."""
    num_weights: int = sum(parameter.numel() for parameter in skeleton(read_config(folder)).parameters())
    itemsize: int = DTYPES[dtype].itemsize
    return num_weights * itemsize // size


class RankActor:
    """A rank other than 0: the body of a Ray actor."""

    def run(self, placement: Placement, config: Config) -> NoReturn:
        """Raises where the rank cannot start; ends the process when the group has failed."""
        _die_with_parent()
        set_up(config.log)
        rank = open_rank(placement, connect_store(placement), config.model, config.target)
        try:
            run_plans(rank.channel, rank.ready.runner, Watchdog(config.target.step_timeout_s, _exit))
        except Exception as error:
            _exit(f"a step failed: {error}")

    def __repr__(self) -> str:
        return "Rank"


def _die_with_parent() -> None:
    """Also while stopped, which Ray's own way of noticing that its raylet is gone does not cover."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit(reason: str) -> NoReturn:
    """At once: torch's threads may still be in what a tidy end would free."""
    _log.error("%s", reason)
    logging.shutdown()
    os._exit(1)
