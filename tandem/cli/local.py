"""The settings of services that share one machine: ports found, addresses linked, cores split."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from tandem.config import PROMPT_LOOKUP, Config, load_config
from tandem.errors import ConfigError

Flags = Mapping[str, Mapping[str, Any]]  # section -> field -> value, as load_config takes them

_SERVICES = ("coordinator", "draft", "target")
_PORTS = ("port", "metrics_port")
_NEVER_OUTGOING = range(20_000, 32_768)  # below what Linux and others take for connections
_EVERY_INTERFACE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}


def local_config(
    path: Path | None, flags: Flags, with_draft: bool, num_cores: int, num_targets: int = 1, num_drafts: int = 1
) -> Config:
    """Settings from `path`, environment and `flags`, completed so that the services find one another.

    The first worker of a kind listens where its section says; the coordinator's lists say where the others do.

    Raises ConfigError when a model is missing or a port is taken.
    """
    asked = load_config(path, flags)
    _check_models(asked, with_draft)
    completed = [flags, _ports(asked)]
    ported, counts = load_config(path, merged(*completed)), (num_targets, num_drafts if with_draft else 0)
    completed += [_links(ported, *counts), _threads(asked, *counts, num_cores)]
    settings = load_config(path, merged(*completed))
    _check_ports(settings, with_draft)
    return settings


def merged(*layers: Flags) -> dict[str, dict[str, Any]]:
    """The fields of all layers, the later above the earlier."""
    sections: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for section, fields in layer.items():
            sections.setdefault(section, {}).update(fields)
    return sections


def dial_address(host: str, port: int) -> str:
    """Where a service that listens on host and port is reached from this machine."""
    return f"{_EVERY_INTERFACE.get(host, host)}:{port}"


def split_threads(num_cores: int, with_draft_model: bool) -> tuple[int, int]:
    """Threads of the target and of the draft: a quarter of the cores drafts, at least one; prompt lookup needs none."""
    if not with_draft_model:
        return num_cores, 1
    draft = max(1, num_cores // 4)
    return max(1, num_cores - draft), draft


def available_cores() -> int:
    """The cores this process may run on, which in a container can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_models(asked: Config, with_draft: bool) -> None:
    if not asked.model.target:
        raise ConfigError("model.target: not set; name a model with --target")
    if with_draft and not asked.model.draft:
        raise ConfigError(f"model.draft: not set; name one with --draft (or {PROMPT_LOOKUP}), or say --no-draft")


def _ports(asked: Config) -> Flags:
    """A free port wherever 0 asks for one: a port that the service chose itself would be unknown to the others."""
    wanted = [(name, field) for name in _SERVICES for field in _PORTS if getattr(getattr(asked, name), field) == 0]
    ports = free_ports(len(wanted))
    return merged(*({name: {field: port}} for (name, field), port in zip(wanted, ports, strict=True)))


def free_ports(num_ports: int) -> list[int]:
    """Different ports that nobody listens on at this moment.

    None that the system gives to outgoing connections: one of those could take it before its service listens.
    """
    found: list[int] = []
    for port in random.sample(_NEVER_OUTGOING, len(_NEVER_OUTGOING)):
        if len(found) == num_ports:
            break
        with suppress(OSError):
            socket.create_server(("127.0.0.1", port)).close()
            found.append(port)
    return found


def _links(ported: Config, num_targets: int, num_drafts: int) -> Flags:
    given = {getattr(getattr(ported, name), field) for name in _SERVICES for field in _PORTS}
    free = iter([port for port in free_ports(num_targets + num_drafts + len(given)) if port not in given])
    targets = [ported.target.port, *islice(free, num_targets - 1)]
    drafts = [ported.draft.port, *free][:num_drafts]
    links = {
        "targets": [dial_address(ported.target.host, port) for port in targets],
        "drafts": [dial_address(ported.draft.host, port) for port in drafts],
    }
    return {"coordinator": links, "model": {} if drafts else {"draft": ""}}


def _threads(asked: Config, num_targets: int, num_drafts: int, num_cores: int) -> Flags:
    """What is set stays; what is not gets its share of the rest."""
    target, draft = asked.target.threads, asked.draft.threads
    with_draft_model = num_drafts > 0 and asked.model.draft != PROMPT_LOOKUP
    targets, drafts = split_threads(num_cores, with_draft_model)
    if with_draft_model and (target or draft):
        targets, drafts = num_cores - draft * num_drafts, num_cores - target * num_targets
    shares = max(1, targets // num_targets), max(1, drafts // max(num_drafts, 1))
    return {"target": {"threads": target or shares[0]}, "draft": {"threads": draft or shares[1]}}


def _check_ports(settings: Config, with_draft: bool) -> None:
    """gRPC lets two servers share a port and splits the calls between them, so that a taken port must be an error."""
    for name in _SERVICES if with_draft else ("coordinator", "target"):
        section = getattr(settings, name)
        for field in _PORTS:
            _check_port(f"{name}.{field}", section.host, getattr(section, field))


def _check_port(setting: str, host: str, port: int) -> None:
    try:
        socket.create_server((host, port), family=_family(host)).close()
    except OSError as error:
        raise ConfigError(
            f"{setting}: cannot listen on {host}:{port}: {error.strerror}; 0 takes any free port"
        ) from error


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
