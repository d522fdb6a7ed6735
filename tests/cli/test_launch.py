"""Which processes are started, with what around them, and when the pairing of draft and target is settled."""

from pathlib import Path

import pytest

from tandem.cli.client import connect
from tandem.cli.launch import await_pairing, service_environment, services
from tandem.config import load_config
from tandem.errors import ModelError
from tandem.v1 import coordinator_pb2 as pb

from .fakes import ScriptedCoordinator, serving


def draft_status(ready: bool, reason: str = "") -> pb.StatusResponse:
    target = pb.WorkerStatus(role="target", ready=True)
    return pb.StatusResponse(workers=[target, pb.WorkerStatus(role="draft", ready=ready, reason=reason)])


def pair(*statuses: pb.StatusResponse, patience_s: float, limit_s: float = 60.0) -> None:
    with serving(ScriptedCoordinator(statuses=statuses)) as address, connect(address) as client:
        await_pairing(client, lambda name, phase: None, patience_s, limit_s)


def test_a_passing_reason_is_waited_out() -> None:
    pair(draft_status(False), draft_status(False, "connecting"), draft_status(True), patience_s=60.0)


def test_a_lasting_reason_is_the_error() -> None:
    with pytest.raises(ModelError, match="piece 7: 'a' is 'b'"):
        pair(draft_status(False, "piece 7: 'a' is 'b'"), patience_s=0.0)


def test_silence_is_an_error_in_the_end() -> None:
    with pytest.raises(ModelError, match="does not say why"):
        pair(draft_status(False), patience_s=60.0, limit_s=0.0)


def test_an_unknown_draft_is_an_error() -> None:
    with pytest.raises(ModelError, match="no draft worker"):
        pair(pb.StatusResponse(), patience_s=0.0)


def test_workers_start_before_the_coordinator() -> None:
    names = [service.name for service in services(load_config(), Path("c.yaml"))]
    assert names == ["target worker", "draft worker", "coordinator"]


def test_without_a_draft_two_processes() -> None:
    config = load_config(None, {"coordinator": {"drafts": ""}})
    assert [service.name for service in services(config, Path("c.yaml"))] == ["target worker", "coordinator"]


def test_settings_of_our_environment_are_in_the_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TARGET__PORT", "1")
    monkeypatch.setenv("TANDEM_CACHE", "/somewhere")
    assert "TANDEM_TARGET__PORT" not in service_environment()
    assert service_environment()["TANDEM_CACHE"] == "/somewhere"
