"""The Ray cluster that holds the ranks: one that exists, or one of our own on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tandem.errors import ConfigError
from target_worker.reaper import start_reaper
from target_worker.resources import InsufficientResources

_STORE_BYTES = 80 << 20  # nothing is passed through Ray's object store


def import_ray() -> ModuleType:
    """Ray, which only groups of several ranks need."""
    return import_module("ray")


class Cluster:
    """A way into the Ray cluster at `address`, or into one that lives as long as this object."""

    def __init__(self, address: str, wait_s: float) -> None:
        """Raises ConfigError, or InsufficientResources if there is no such cluster or it does not let us in."""
        self._reaper: subprocess.Popen[bytes] | None = None
        if find_spec("ray") is None:
            raise ConfigError("target.tensor_parallel_size: more than 1 needs Ray: pip install 'tandem-serving[ray]'")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if address:
            _join(address, wait_s)
        else:
            self._start()

    def close(self) -> None:
        import_ray().shutdown()
        if self._reaper is not None:
            self._reaper.communicate()

    def _start(self) -> None:
        import_ray().init(
            "local",
            include_dashboard=False,
            object_store_memory=_STORE_BYTES,
            _system_config={"prestart_worker_first_driver": False},
        )
        self._reaper = start_reaper(os.getpid())


def _join(address: str, wait_s: float) -> None:
    _await_cluster(address, wait_s)
    _use_token()
    try:
        import_ray().init(address)
    except Exception as error:
        hint = "is its token ours, its release of Ray too, and this machine one of its nodes?"
        raise InsufficientResources(f"cannot join the Ray cluster at {address}: {first_line(error)}; {hint}") from error


def _await_cluster(address: str, wait_s: float) -> None:
    """Ray itself would wait for longer, and say less."""
    host, _, port = address.rpartition(":")
    try:
        with suppress(ValueError), socket.create_connection((host, int(port)), wait_s):
            return
    except OSError as error:
        raise InsufficientResources(f"no Ray cluster at {address}: {error}") from error
    raise ConfigError(f"target.ray_address: {address!r} is not HOST:PORT")


def _use_token() -> None:
    """A driver offers its token only where it is told to, and a cluster refuses it without, which is Ray's default."""
    default = Path.home() / ".ray" / "auth_token"
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or default.exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def first_line(error: Exception) -> str:
    """What Ray says of an error, without the tracebacks in it."""
    return next(iter(str(error).strip().splitlines()), "")
