"""`tandem up` as a process, over stand-ins of the three services."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from .processes import alive, eventually

SERVICES = ("coordinator", "draft_worker", "target_worker")
SETTINGS = "coordinator: {port: 0, draft_retry_s: 0.1}\ndraft: {port: 0}\ntarget: {port: 0}\n"


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A folder with a model that looks complete, settings, stand-ins for the services, and room for their pids."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").touch()
    (tmp_path / "config.yaml").write_text(SETTINGS)
    for name in SERVICES:
        shutil.copy(Path(__file__).with_name("fake_service.py"), tmp_path / f"{name}.py")
    (tmp_path / "pids").mkdir()
    (tmp_path / "temporary").mkdir()
    return tmp_path


@contextmanager
def up(stage: Path, *flags: str, **fakes: str) -> Iterator[subprocess.Popen[str]]:
    places = {"PYTHONPATH": str(stage), "FAKE_PIDS": str(stage / "pids"), "TMPDIR": str(stage / "temporary")}
    model = str(stage / "model")
    options = ["--config", str(stage / "config.yaml"), "--target", model, "--draft", model, *flags]
    command = [sys.executable, "-P", "-m", "tandem.cli", "up", *options]
    environment = {**os.environ, **places, **fakes}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_ready(process: subprocess.Popen[str]) -> list[str]:
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready"):
            return lines
    raise AssertionError("ended before it was ready")


def pids(stage: Path) -> list[int]:
    return [int(path.read_text()) for path in (stage / "pids").iterdir()]


def pid(stage: Path, name: str) -> int:
    [path] = (stage / "pids").glob(f"{name}-*")
    return int(path.read_text())


def test_prints_where_the_services_are(stage: Path) -> None:
    with up(stage) as process:
        addresses = dict(line.split(": ") for line in wait_ready(process)[:-1])
    assert set(addresses) == {"coordinator", "draft worker", "target worker"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well(stage: Path, number: signal.Signals) -> None:
    with up(stage) as process:
        wait_ready(process)
        assert len(pids(stage)) == 3
        process.send_signal(number)
        assert process.wait(20) == 0
        assert not any(map(alive, pids(stage)))
    assert not list((stage / "temporary").iterdir()), "settings and logs were left behind"


def test_killed_it_leaves_nothing(stage: Path) -> None:
    with up(stage) as process:
        wait_ready(process)
        process.kill()
        eventually(lambda: not any(map(alive, pids(stage))), within_s=5.0)


@pytest.mark.parametrize("name", SERVICES)
def test_an_early_death_is_shown_and_ends_the_others(stage: Path, name: str) -> None:
    with up(stage, FAKE_DIES=name) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert f"{name}: out of memory" in errors
    assert not any(map(alive, pids(stage)))


def test_another_vocabulary_is_the_reason_it_gives(stage: Path) -> None:
    with up(stage, FAKE_REASON="vocabularies differ at piece 7") as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert errors.endswith("error: the draft cannot be used: vocabularies differ at piece 7\n")
    assert not any(map(alive, pids(stage)))


def test_a_lost_draft_worker_is_reported_and_the_rest_goes_on(stage: Path) -> None:
    with up(stage) as process:
        wait_ready(process)
        os.kill(pid(stage, "draft_worker"), signal.SIGKILL)
        assert process.stderr
        assert any("draft worker was ended by SIGKILL" in line for line in process.stderr)
        assert process.poll() is None


def test_a_lost_target_worker_ends_it(stage: Path) -> None:
    with up(stage) as process:
        wait_ready(process)
        os.kill(pid(stage, "target_worker"), signal.SIGKILL)
        assert process.wait(20) == 1
        assert not any(map(alive, pids(stage)))


def test_several_workers_of_a_kind_stand_in_for_one_another(stage: Path) -> None:
    """Each at an address of its own; the last target that is lost ends it, and then nothing is left."""
    with up(stage, "--num-targets", "2", "--num-drafts", "3") as process:
        addresses = dict(line.split(": ") for line in wait_ready(process)[:-1])
        kinds = [*(f"target worker {i}" for i in (1, 2)), *(f"draft worker {i}" for i in (1, 2, 3)), "coordinator"]
        assert list(addresses) == kinds and len(set(addresses.values())) == len(pids(stage)) == 6
        first, second = (int(path.read_text()) for path in (stage / "pids").glob("target_worker-*"))
        os.kill(first, signal.SIGKILL)
        assert process.stderr
        assert any("was ended by SIGKILL" in line for line in process.stderr)
        assert process.poll() is None
        os.kill(second, signal.SIGKILL)
        assert process.wait(20) == 1
        assert not any(map(alive, pids(stage)))


def test_an_unknown_model_is_named_before_anything_starts(stage: Path) -> None:
    shutil.rmtree(stage / "model")
    with up(stage) as process:
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 1
    assert str(stage / "model") in errors
    assert not pids(stage)
