"""Ports, addresses and threads of services that share a machine."""

import socket
from pathlib import Path

import pytest

from tandem.cli.local import dial_address, free_ports, local_config, split_threads
from tandem.config import PROMPT_LOOKUP, Config
from tandem.errors import ConfigError

ANY_PORT = {"port": 0}
PORTS = {"coordinator": ANY_PORT, "draft": ANY_PORT, "target": ANY_PORT}


def configured(num_cores: int = 8, with_draft: bool = True, draft: str = "d", **threads: int) -> Config:
    target = {**ANY_PORT, **({"threads": threads["target"]} if "target" in threads else {})}
    drafting = {**ANY_PORT, **({"threads": threads["draft"]} if "draft" in threads else {})}
    flags = {**PORTS, "target": target, "draft": drafting, "model": {"target": "t", "draft": draft}}
    return local_config(None, flags, with_draft, num_cores)


@pytest.mark.parametrize(("num_cores", "target", "draft"), [(1, 1, 1), (2, 1, 1), (4, 3, 1), (8, 6, 2), (16, 12, 4)])
def test_the_draft_gets_a_quarter_and_at_least_one(num_cores: int, target: int, draft: int) -> None:
    assert split_threads(num_cores, with_draft_model=True) == (target, draft)


def test_threads_that_are_set_stay() -> None:
    config = configured(target=5)
    assert (config.target.threads, config.draft.threads) == (5, 3)


@pytest.mark.parametrize(("with_draft", "draft"), [(False, "d"), (True, PROMPT_LOOKUP)])
def test_without_a_draft_model_the_target_gets_all(with_draft: bool, draft: str) -> None:
    assert configured(with_draft=with_draft, draft=draft).target.threads == 8


def test_port_0_becomes_a_port_that_the_others_know() -> None:
    config = configured()
    assert len({config.coordinator.port, config.draft.port, config.target.port} - {0}) == 3
    assert config.coordinator.targets == (f"127.0.0.1:{config.target.port}",)
    assert config.coordinator.drafts == (f"127.0.0.1:{config.draft.port}",)


def test_further_workers_get_ports_of_their_own_that_the_coordinator_knows() -> None:
    flags = {**PORTS, "model": {"target": "t", "draft": "d"}}
    config = local_config(None, flags, True, num_cores=8, num_targets=3, num_drafts=2)
    coordinator = config.coordinator
    assert (len(coordinator.targets), len(coordinator.drafts)) == (3, 2)
    assert coordinator.targets[0] == f"127.0.0.1:{config.target.port}"
    assert coordinator.drafts[0] == f"127.0.0.1:{config.draft.port}"
    assert len({*coordinator.targets, *coordinator.drafts, f"127.0.0.1:{coordinator.port}"}) == 6


@pytest.mark.parametrize(("num_cores", "threads"), [(16, (4, 2)), (2, (1, 1))])
def test_workers_of_a_kind_share_its_cores(num_cores: int, threads: tuple[int, int]) -> None:
    flags = {**PORTS, "model": {"target": "t", "draft": "d"}}
    config = local_config(None, flags, True, num_cores, num_targets=3, num_drafts=2)
    assert (config.target.threads, config.draft.threads) == threads


def test_without_a_draft_the_coordinator_knows_of_none() -> None:
    config = configured(with_draft=False)
    assert config.coordinator.drafts == () and config.model.draft == ""


def test_flags_stand_above_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model: {target: file, draft: file}\ntarget: {threads: 3}\n")
    monkeypatch.setenv("TANDEM_MODEL__DRAFT", "environment")
    config = local_config(path, {**PORTS, "model": {"target": "flag"}}, True, num_cores=4)
    assert (config.model.target, config.model.draft, config.target.threads) == ("flag", "environment", 3)


@pytest.mark.parametrize("section", ["coordinator", "draft", "target"])
@pytest.mark.parametrize("field", ["port", "metrics_port"])
def test_a_taken_port_is_named(section: str, field: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {**PORTS, section: {**PORTS[section], field: port}, "model": {"target": "t", "draft": "d"}}
        with pytest.raises(ConfigError, match=rf"{section}\.{field}: cannot listen on .*:{port}"):
            local_config(None, flags, True, num_cores=2)


@pytest.mark.parametrize("missing", ["target", "draft"])
def test_a_missing_model_is_named(missing: str) -> None:
    models = {"target": "t", "draft": "d", missing: ""}
    with pytest.raises(ConfigError, match=rf"model\.{missing}"):
        local_config(None, {"model": models}, True, num_cores=2)


def test_every_interface_is_dialled_by_loopback() -> None:
    assert dial_address("0.0.0.0", 7070) == "127.0.0.1:7070"
    assert dial_address("10.0.0.1", 7070) == "10.0.0.1:7070"


def test_free_ports_are_different_and_no_connection_takes_them() -> None:
    """Family: a port that was free when it was chosen, and not any more when its service began to listen."""
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < 32_768  # where Linux begins to take them for connections, unless told otherwise
