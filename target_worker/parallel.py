"""Rank 0 of a group: this worker process, with the other ranks in Ray."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from tandem.config import Config, cache_folder
from tandem.model.loading import ReadyModel
from tandem.model.resolve import resolve
from target_worker import rebuild
from target_worker.channel import leave
from target_worker.crew import Crew
from target_worker.group import Group
from target_worker.line import Line
from target_worker.rank import Share, check_degree, open_share

_SETTLE_S = 3.0  # for the crew to find out that a rank is lost, when loading fails because of it
_CLOSE_S = 8.0
_log = logging.getLogger(__name__)


class Parallel:
    """The group's life in this process: `open` once, `close` at the end."""

    def __init__(self, config: Config, on_loss: rebuild.Rebuild, on_ray: Callable[[], object]) -> None:
        """`on_ray` is called once Ray runs, which takes the process's signals for itself."""
        self._config = config
        self._on_ray = on_ray
        self._on_loss = on_loss
        self._crew: Crew | None = None
        self._line: Line | None = None

    def open(self) -> tuple[ReadyModel, Group]:
        """Returns once every rank has loaded. Raises TandemError where that cannot succeed."""
        rebuild.bury()
        settings = self._config.target
        check_degree(resolve(self._config.model.target, cache_folder()), settings.tensor_parallel_size)
        self._crew = Crew(self._config, self._on_loss)
        share = self._share(self._crew)
        self._line = Line(share.channel, settings.step_timeout_s, self._on_loss)
        rebuild.ready()
        return share.ready, Group(share.ready.runner, self._line)

    def close(self) -> None:
        """Leaves no rank and no Ray of our own behind, in bounded time."""
        closing = threading.Thread(target=self._close, name="closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive():
            _log.warning("the ranks were not closed in %g s", _CLOSE_S)
            os._exit(1)

    def _share(self, crew: Crew) -> Share:
        berth = crew.embark()
        self._on_ray()
        try:
            config = self._config
            return open_share(berth.place, berth.store, berth.address, berth.gpu, config.model, config.target)
        except Exception:
            threading.Event().wait(_SETTLE_S)  # if a lost rank is why, this process is a new one before the end of it
            raise

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._crew is not None:
            self._crew.close()
        leave()
