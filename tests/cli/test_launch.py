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


def test_all_drafts_are_waited_for() -> None:
    halves = [
        pb.WorkerStatus(role="draft", ready=ready, reason="" if ready else "a stranger") for ready in (True, False)
    ]
    with pytest.raises(ModelError, match="a stranger"):
        pair(pb.StatusResponse(workers=halves), patience_s=0.0)


def test_an_unknown_draft_is_an_error() -> None:
    with pytest.raises(ModelError, match="no draft worker"):
        pair(pb.StatusResponse(), patience_s=0.0)


def test_workers_start_before_the_coordinator(tmp_path: Path) -> None:
    names = [service.name for service in services(load_config(), tmp_path)]
    assert names == ["target worker", "draft worker", "coordinator"]


def test_without_a_draft_two_processes(tmp_path: Path) -> None:
    config = load_config(None, {"coordinator": {"drafts": ""}})
    assert [service.name for service in services(config, tmp_path)] == ["target worker", "coordinator"]


def test_every_address_that_the_coordinator_has_gets_a_worker_that_listens_there(tmp_path: Path) -> None:
    lists = {"targets": "127.0.0.1:7072,127.0.0.1:1001", "drafts": "127.0.0.1:7071,127.0.0.1:1002,127.0.0.1:1003"}
    *workers, _ = services(load_config(None, {"coordinator": lists}), tmp_path)
    names = ["target worker 1", "target worker 2", "draft worker 1", "draft worker 2", "draft worker 3"]
    assert [worker.name for worker in workers] == names
    metrics_ports = []
    for worker in workers:
        config = load_config(Path(worker.command[worker.command.index("--config") + 1]))
        section = config.target if worker.role == "target worker" else config.draft
        assert worker.address == f"127.0.0.1:{section.port}"
        metrics_ports.append(section.metrics_port)
    assert metrics_ports == [9092, 0, 9091, 0, 0]


def test_the_first_worker_listens_where_its_section_says_though_a_relay_is_dialled(tmp_path: Path) -> None:
    lists = {"targets": "127.0.0.1:1001", "drafts": "127.0.0.1:1002"}
    target, draft, _ = services(load_config(None, {"coordinator": lists}), tmp_path)
    assert (target.address, draft.address) == ("127.0.0.1:7072", "127.0.0.1:7071")


def test_settings_of_our_environment_are_in_the_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_TARGET__PORT", "1")
    monkeypatch.setenv("TANDEM_CACHE", "/somewhere")
    assert "TANDEM_TARGET__PORT" not in service_environment()
    assert service_environment()["TANDEM_CACHE"] == "/somewhere"
