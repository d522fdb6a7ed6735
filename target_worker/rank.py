"""What every rank of a group does: join, load its share of the model, agree on the memory; all but rank 0 follow."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tandem.config import ModelConfig, TargetConfig
from tandem.errors import ConfigError
from tandem.model.loading import ReadyModel, open_model
from tandem.model.pretrained import read_config
from target_worker.channel import Place, TorchChannel, go_to, join, smallest
from target_worker.line import follow
from target_worker.watchdog import Watchdog

_PR_SET_PDEATHSIG = 1
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's share of the model, and its end of the channel."""

    ready: ReadyModel
    channel: TorchChannel


def open_share(
    place: Place, store: Any, own_address: str, gpu: int | None, models: ModelConfig, settings: TargetConfig
) -> Share:
    """Returns once every rank has loaded. Raises ModelError, or what torch raises where a rank is lost."""
    if gpu is not None:
        os.environ["LOCAL_RANK"] = str(gpu)  # transformers binds the device by it
        models = models.model_copy(update={"device": f"cuda:{gpu}"})
        torch.cuda.set_device(gpu)
    threads = max(1, (settings.threads or os.cpu_count() or 1) // place.num_here)
    # Twice: a rank's own timer comes first, and ends the process without what torch does with a collective that failed.
    channel = join(place, store, models.device, own_address, 2 * settings.step_timeout_s)
    _introduce(place, store, f"process {os.getpid()} on {own_address}")
    sharing = place.num_here if gpu is None and not settings.kv_tokens else 1  # of one machine's memory
    ready = open_model(
        models.target,
        models,
        settings.model_copy(update={"threads": threads}),
        tensor_parallel_size=place.size,
        agree=lambda num_tokens: smallest(num_tokens // sharing),
    )
    return Share(ready, channel)


def _introduce(place: Place, store: Any, who: str) -> None:
    """Has rank 0's log name the process of every rank."""
    store.set(f"rank {place.rank}", who)
    if place.rank == 0:
        for rank in range(place.size):
            _log.info("rank %d of %d is %s", rank, place.size, store.get(f"rank {rank}").decode())


def check_degree(folder: Path, size: int) -> None:
    """Raises ConfigError unless every rank can have as many heads as the others."""
    config = read_config(folder).get_text_config(decoder=True)
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    for count, kind in ((heads, "attention heads"), (kv_heads, "key/value heads")):
        if count % size:
            raise ConfigError(f"target.tensor_parallel_size: {size} ranks cannot share {count} {kind} of {folder.name}")


class Follower:
    """A rank other than 0: the body of a Ray actor."""

    def run(self, place: Place, models: ModelConfig, settings: TargetConfig, own_address: str, gpu: int | None) -> None:
        """Returns when rank 0 says stop. Raises, or ends the process, when the group has failed."""
        _die_with_parent()
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        share = open_share(place, go_to(place), own_address, gpu, models, settings)
        follow(share.channel, share.ready.runner, Watchdog(settings.step_timeout_s, _die))

    def __repr__(self) -> str:
        return "Rank"


def _die_with_parent() -> None:
    """Also while stopped, which Ray's own way of noticing that its raylet is gone does not cover."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _die(reason: str) -> None:
    _log.error("%s", reason)
    logging.shutdown()
    os._exit(1)
