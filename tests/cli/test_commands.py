"""The commands against a scripted coordinator: what they send, show and write, and how they end."""

import json
from pathlib import Path

import pytest
from google.rpc import status_pb2

from tandem.cli import main
from tandem.cli.services import service_command
from tandem.v1 import coordinator_pb2 as pb

from .fakes import CHUNKS, ScriptedCoordinator, bad_request, serving

JSON_KEYS = [
    "text",
    "token_ids",
    "num_tokens",
    "tokens_per_s",
    "num_verifies",
    "tokens_per_verify",
    "acceptance_rate",
    "num_rollbacks",
    "num_ahead_hits",
    "num_fallbacks",
    "finish_reason",
]


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(args)
    return int(ended.value.code or 0)


def test_generate_streams_the_bare_text_off_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedCoordinator()) as address:
        assert run("generate", "Why?", "--address", address) == 0
    assert capsys.readouterr().out == "The sky is\n"


def test_generate_writes_its_numbers(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    with serving(ScriptedCoordinator()) as address:
        assert run("generate", "Why?", "--address", address, "--json", str(path)) == 0
    result = json.loads(path.read_text())
    assert list(result) == JSON_KEYS
    assert result["token_ids"] == [5, 6, 7, 8]
    assert result["tokens_per_s"] == 3.0  # three tokens in the second after the first
    assert (result["tokens_per_verify"], result["acceptance_rate"], result["num_fallbacks"]) == (2.0, 0.5, 3)
    assert result["finish_reason"] == "max_tokens"


def test_generate_sends_what_is_asked_and_leaves_the_rest_open() -> None:
    coordinator = ScriptedCoordinator()
    options = ["--num-tokens", "0", "--lookahead", "off", "--seed", "7", "--stop", "a", "--stop", "b"]
    with serving(coordinator) as address:
        assert run("generate", "Why?", "--address", address) == 0
        assert run("generate", "Why?", "--raw", "--max-tokens", "9", "--address", address, *options) == 0
    plain, full = coordinator.requests
    assert plain.chat.messages[0] == pb.Message(role="user", content="Why?")
    assert plain.sampling.HasField("temperature") and plain.sampling.temperature == 0
    assert not plain.stopping.HasField("max_tokens") and not plain.speculation.HasField("num_tokens")
    assert full.text == "Why?"
    assert (full.stopping.max_tokens, list(full.stopping.stop), full.sampling.seed) == (9, ["a", "b"], 7)
    assert full.speculation == pb.SpeculationParams(num_tokens=0, lookahead=pb.LOOKAHEAD_OFF)


def test_a_refused_request_is_one_line_and_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedCoordinator(error=bad_request("stopping.stop", "too long"))) as address:
        assert run("generate", "Why?", "--address", address) == 1
    assert capsys.readouterr().err == "error: INVALID_ARGUMENT: bad request; stopping.stop: too long\n"


def test_nobody_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--address", "127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("error: UNAVAILABLE: ")


def test_a_stream_without_finish_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedCoordinator(chunks=CHUNKS[:1])) as address:
        assert run("generate", "Why?", "--address", address) == 1
    assert "ended without a finish" in capsys.readouterr().err


def test_wrong_usage_is_code_2() -> None:
    assert run("generate", "Why?", "--num-tokens", "17") == 2


def test_status_shows_why_a_worker_is_not_used(capsys: pytest.CaptureFixture[str]) -> None:
    worker = pb.WorkerStatus(role="draft", address="h:1", reason="piece 7 differs")
    status = pb.StatusResponse(model="tiny", version="1", workers=[worker], num_running=3)
    with serving(ScriptedCoordinator(statuses=[status])) as address:
        assert run("status", "--address", address) == 0
    shown = capsys.readouterr().out
    assert "3 running" in shown and "draft h:1: piece 7 differs\n" in shown


def test_chat_keeps_the_conversation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = iter(["Why?", "  ", "And then?"])

    def typed(prompt: str = "") -> str:
        for line in lines:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", typed)
    coordinator = ScriptedCoordinator()
    with serving(coordinator) as address:
        assert run("chat", "--address", address) == 0
    turns = [(message.role, message.content) for message in coordinator.requests[1].chat.messages]
    assert turns == [("user", "Why?"), ("assistant", "The sky is"), ("user", "And then?")]


def test_config_prints_what_is_in_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("target: {threads: 3}\n")
    assert run("config", "--config", str(path)) == 0
    assert "  threads: 3\n" in capsys.readouterr().out
    assert run("config", "--config", str(path), "--check") == 0
    path.write_text("target: {thread: 3}\n")
    assert run("config", "--config", str(path), "--check") == 1
    assert "target.thread" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "module"), [("coordinator", "coordinator"), ("draft-worker", "draft_worker")])
def test_a_service_replaces_this_process(name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, ...]] = []
    monkeypatch.setattr("os.execv", lambda path, command: became.append(command))
    assert run(name, "--config", "c.yaml") == 0
    assert became == [service_command(module, Path("c.yaml"))]
    assert became[0][1:] == ("-P", "-m", module, "--config", "c.yaml")


def test_unknown_details_do_not_hide_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(ScriptedCoordinator(error=status_pb2.Status(code=8, message="full"))) as address:
        assert run("generate", "Why?", "--address", address) == 1
    assert capsys.readouterr().err == "error: RESOURCE_EXHAUSTED: full\n"
