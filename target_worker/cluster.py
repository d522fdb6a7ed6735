"""The Ray cluster that holds the ranks: one that exists, or one of our own on this machine."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from tandem.errors import ConfigError
from target_worker.room import NoRoom

_STORE_BYTES = 80 << 20  # nothing is passed through Ray's object store
_LOSS_TIMEOUT_S = "5"  # Ray's agents look that long for a head that was killed, instead of 60


def ray_module() -> ModuleType:
    """Ray, which only groups of several ranks need."""
    return import_module("ray")


def connect(address: str, wait_s: float) -> None:
    """Joins the Ray cluster at `address`, or starts one. Raises ConfigError, or NoRoom if there is no such cluster."""
    if find_spec("ray") is None:
        raise ConfigError("target.tensor_parallel_size: more than 1 needs Ray: pip install 'tandem-serving[ray]'")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address:
        _await_cluster(address, wait_s)
        _use_token()
    else:
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", _LOSS_TIMEOUT_S)
    ray = ray_module()
    if address:
        ray.init(address)
        return
    ray.init(
        "local",
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        _system_config={"prestart_worker_first_driver": False},
    )


def _await_cluster(address: str, wait_s: float) -> None:
    """Ray itself would wait for longer, and say less."""
    host, _, port = address.rpartition(":")
    try:
        with suppress(ValueError), socket.create_connection((host, int(port)), wait_s):
            return
    except OSError as error:
        raise NoRoom(f"no Ray cluster at {address}: {error}") from error
    raise ConfigError(f"target.ray_address: {address!r} is not HOST:PORT")


def _use_token() -> None:
    """A driver offers its token only where it is told to, and a cluster refuses it without, which is Ray's default."""
    default = Path.home() / ".ray" / "auth_token"
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or default.exists():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
