"""Rank 0 of a group: this worker process, with the other ranks in Ray."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from tandem.config import Config, cache_folder
from tandem.model.loading import ReadyModel
from tandem.model.resolve import resolve
from target_worker.broadcast import PlanBroadcast
from target_worker.group import Group
from target_worker.rank import Rank, check_degree, open_rank, shard_bytes
from target_worker.rank_actors import RankActors
from target_worker.rebuild import Rebuild, reap_children, reset_attempts

_SETTLE_S = 3.0  # for Ray to find out that a rank is lost, when loading fails because of it
_CLOSE_S = 15.0  # a caller waits longer
_log = logging.getLogger(__name__)


class TensorParallel:
    """The group's life in this process: `open` once, `close` at the end."""

    def __init__(self, config: Config, on_loss: Rebuild, on_ray: Callable[[], object]) -> None:
        """`on_ray` is called once Ray runs, which takes the process's signals for itself."""
        self._config = config
        self._on_ray = on_ray
        self._on_loss = on_loss
        self._actors: RankActors | None = None
        self._broadcast: PlanBroadcast | None = None

    def open(self) -> tuple[ReadyModel, Group]:
        """Returns once every rank has loaded. Raises TandemError where that cannot succeed."""
        reap_children()
        models, settings = self._config.model, self._config.target
        folder = resolve(models.target, cache_folder())
        check_degree(folder, settings.tensor_parallel_size)
        share = shard_bytes(folder, models.dtype, settings.tensor_parallel_size)
        self._actors = RankActors(self._config, share, self._on_loss)
        rank = self._open_rank(self._actors)
        self._broadcast = PlanBroadcast(rank.channel, settings.step_timeout_s, self._on_loss)
        reset_attempts()
        return rank.ready, Group(rank.ready.runner, self._broadcast)

    def close(self) -> None:
        """Leaves no rank and no Ray of our own behind, in bounded time."""
        closing = threading.Thread(target=self._close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            _log.warning("the ranks were not closed in %g s", _CLOSE_S)
            os._exit(1)

    def _open_rank(self, actors: RankActors) -> Rank:
        placement, store = actors.wait_launched()
        self._on_ray()
        try:
            return open_rank(placement, store, self._config.model, self._config.target)
        except Exception:
            threading.Event().wait(_SETTLE_S)  # if a lost rank is why, this process is a new one before the end of it
            raise

    def _close(self) -> None:
        if self._broadcast is not None:
            self._broadcast.close()
        if self._actors is not None:
            self._actors.close()
