"""Real processes, small ones: they start, become healthy, die early, refuse to go, and outlive nobody."""

import signal
import subprocess
from pathlib import Path

import pytest

from tandem.cli.local import free_ports
from tandem.supervisor import READY, Service, ServiceExited, ServiceNotReady, StopSignal, Supervisor

from .fakes import DEAF, HEALTHY, UNTIL_ORPHANED, python
from .processes import alive, eventually

NOWHERE = "127.0.0.1:1"


def healthy_service(name: str) -> Service:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    return Service(name, python(HEALTHY, address), address)


def test_reports_until_all_are_ready(tmp_path: Path) -> None:
    services = [healthy_service("one"), healthy_service("two")]
    phases: list[tuple[str, str]] = []
    with Supervisor(services, tmp_path) as supervisor:
        supervisor.start()
        supervisor.wait_ready(lambda name, phase: phases.append((name, phase)))
    assert set(phases[-2:]) == {("one", READY), ("two", READY)}


def test_early_death_shows_the_end_of_the_log(tmp_path: Path) -> None:
    dying = Service("target worker", python("import sys; print('first cause'); sys.exit(3)"), NOWHERE)
    with Supervisor([healthy_service("other"), dying], tmp_path) as supervisor:
        supervisor.start()
        with pytest.raises(ServiceExited, match=r"target worker exited with code 3[\s\S]*first cause"):
            supervisor.wait_ready(lambda name, phase: None)


def test_never_ready_is_an_error_in_the_end(tmp_path: Path) -> None:
    with Supervisor([Service("slow", python(UNTIL_ORPHANED), NOWHERE)], tmp_path) as supervisor:
        supervisor.start()
        with pytest.raises(ServiceNotReady, match="slow not ready"):
            supervisor.wait_ready(lambda name, phase: None, timeout_s=0.0)


def test_a_vital_service_ends_the_watch_another_is_told_of(tmp_path: Path) -> None:
    spare = Service("draft worker", python("import sys; sys.exit(4)"), NOWHERE, vital=False)
    vital = Service("coordinator", python("import os; os.kill(os.getpid(), 9)"), NOWHERE)
    losses: list[str] = []
    with Supervisor([spare], tmp_path) as supervisor:
        supervisor.start()

        supervisor.watch(lambda loss: losses.append(str(loss)), until=lambda: bool(losses))
    with Supervisor([vital], tmp_path) as supervisor:
        supervisor.start()
        with pytest.raises(ServiceExited, match="coordinator was ended by SIGKILL"):
            supervisor.watch(lambda loss: None, until=lambda: False)
    assert "draft worker exited with code 4" in losses[0]


def test_stop_kills_what_does_not_listen_and_may_be_repeated(tmp_path: Path) -> None:
    supervisor = Supervisor([Service("deaf", python(DEAF), NOWHERE)], tmp_path, grace_s=0.1)
    supervisor.start()
    eventually(lambda: "deaf" in (tmp_path / "deaf.log").read_text())
    supervisor.stop()
    supervisor.stop()


def test_the_last_one_started_stops_first(tmp_path: Path) -> None:
    ending = "import signal, sys, time; signal.signal(15, lambda *_: (print(time.monotonic_ns()), sys.exit()));"
    ending += "print('up', flush=True); sys.stdin.read()"
    logs = [tmp_path / "worker.log", tmp_path / "coordinator.log"]
    with Supervisor([Service(log.stem, python(ending), NOWHERE) for log in logs], tmp_path) as supervisor:
        supervisor.start()
        eventually(lambda: all("up" in log.read_text() for log in logs))
    worker_end, coordinator_end = (int(log.read_text().split()[-1]) for log in logs)
    assert coordinator_end < worker_end


PARENT = """
import sys
from pathlib import Path
from tandem.supervisor import Service, Supervisor
command = (sys.executable, "-c", "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()")
supervisor = Supervisor([Service("one", command, ""), Service("two", command, "")], Path(sys.argv[1]))
supervisor.start()
sys.stdin.read()
"""


def test_a_killed_parent_leaves_no_child(tmp_path: Path) -> None:
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    with subprocess.Popen(python(PARENT, str(tmp_path)), stdin=subprocess.PIPE) as parent:
        eventually(lambda: all(log.exists() and log.read_text().endswith("\n") for log in logs))
        children = [int(log.read_text()) for log in logs]
        assert all(map(alive, children))
        parent.kill()
    eventually(lambda: not any(map(alive, children)), within_s=5.0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_only_the_first_signal_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignal() as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stop.seen
    assert signal.getsignal(number) is before


def test_a_signal_that_is_only_noted_raises_nothing() -> None:
    with StopSignal() as stop:
        stop.only_note()
        assert not stop.seen
        signal.raise_signal(signal.SIGTERM)
        assert stop.seen
