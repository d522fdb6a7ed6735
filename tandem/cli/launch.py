"""From settings to running services, and back down: shared by `up` and `demo`."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tandem.addresses import split_address
from tandem.cli.client import Client, connect
from tandem.cli.config import as_yaml
from tandem.cli.console import err
from tandem.cli.local import dial_address
from tandem.cli.progress import phases, to_one
from tandem.cli.services import service_command
from tandem.config import PROMPT_LOOKUP, Config, cache_folder
from tandem.errors import ModelError
from tandem.model.resolve import resolve
from tandem.supervisor import POLL_S, READY, Report, Service, Supervisor
from tandem.v1 import coordinator_pb2 as pb

_CLOSE_S = (2.0, 17.0)  # what services need to end after `drain_s`: without ranks in Ray, and with
PAIRING_S = 60.0  # longest wait for the coordinator to say whether it uses the draft
COORDINATOR, DRAFT, TARGET = "coordinator", "draft worker", "target worker"


def resolve_model(name: str, report: Report, role: str) -> Path:
    """The folder of a model, converted if need be. Raises ModelError."""
    folder = resolve(name, cache_folder(), to_one(report, role))
    report(role, READY)
    return folder


@contextmanager
def launched(config: Config) -> Iterator[Supervisor]:
    """The services of `config`, healthy and paired, with progress on standard error; stopped at the end."""
    with phases(err) as report:
        _resolve_models(config, report)
    with _run_folder() as folder:
        grace_s = config.rpc.drain_s + _CLOSE_S[config.target.tensor_parallel_size > 1]
        with Supervisor(services(config, folder), folder, service_environment(), grace_s) as supervisor:
            with phases(err) as report:
                _bring_up(supervisor, config, report)
            yield supervisor


def _resolve_models(config: Config, report: Report) -> None:
    """Has both models on disk before any service starts, so that the services only load."""
    resolve_model(config.model.target, report, "target model")
    if config.model.draft not in ("", PROMPT_LOOKUP):
        resolve_model(config.model.draft, report, "draft model")


def _bring_up(supervisor: Supervisor, config: Config, report: Report) -> None:
    supervisor.start()
    supervisor.wait_ready(report)
    if config.coordinator.drafts:
        with connect(coordinator_address(config)) as client:
            await_pairing(client, report, patience_s=2 * config.coordinator.draft_retry_s)


@contextmanager
def _run_folder() -> Iterator[Path]:
    """A folder for settings and logs, which stays where something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="tandem-"))
    keep = False
    try:
        yield folder
    except Exception:
        keep = True
        err.print(f"settings and logs stay in {folder}", markup=False, soft_wrap=True)
        raise
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def services(config: Config, folder: Path) -> list[Service]:
    """The processes to run, with their settings in `folder`; workers first: the coordinator is to be stopped before
    them.
    """
    coordinator = _service(COORDINATOR, "coordinator", coordinator_address(config), config, folder)
    # Without a draft worker the coordinator goes on, only slower.
    return [*_workers(TARGET, "target", config, folder), *_workers(DRAFT, "draft", config, folder), coordinator]


def _workers(role: str, section: str, config: Config, folder: Path) -> list[Service]:
    """As many as the coordinator has addresses of. The first listens where its section says, which is not where it is
    dialled if a relay stands between; the further ones where they are dialled.
    """
    dialled: Sequence[str] = getattr(config.coordinator, f"{section}s")
    first = getattr(config, section)
    addresses = [dial_address(first.host, first.port), *dialled[1:]] if dialled else []
    numbers = range(1, len(addresses) + 1) if len(addresses) > 1 else ("",)
    made: list[Service] = []
    for number, address in zip(numbers, addresses, strict=False):
        ports = {"port": split_address(address)[1], **({"metrics_port": 0} if made else {})}
        own = config.model_copy(update={section: first.model_copy(update=ports)})
        name = f"{role} {number}".rstrip()
        made.append(_service(name, f"{section}_worker", address, own, folder, role, vital=role == TARGET))
    return made


def _service(
    name: str, module: str, address: str, config: Config, folder: Path, role: str = "", vital: bool = True
) -> Service:
    path = folder / f"{name.replace(' ', '-')}.yaml"
    path.write_text(as_yaml(config))
    return Service(name, service_command(module, path, stop_with_parent=True), address, vital, role)


def coordinator_address(config: Config) -> str:
    return dial_address(config.coordinator.host, config.coordinator.port)


def service_environment() -> dict[str, str]:
    """Ours without settings: they are in the written file already, below our flags; there they would stand above it."""
    settings = tuple(f"TANDEM_{section}__".upper() for section in Config.model_fields)
    ours = {name: value for name, value in os.environ.items() if not name.upper().startswith(settings)}
    return {**ours, "PYTHONUNBUFFERED": "1"}


def await_pairing(client: Client, report: Report, patience_s: float, limit_s: float = PAIRING_S) -> None:
    """Returns once the coordinator uses the draft. Raises ModelError with its reason when it does not.

    A healthy draft worker may still be unknown to the coordinator, which retries; only a reason that outlasts those
    retries is final.
    """
    report("draft and target", "comparing vocabularies")
    began = time.monotonic()
    reason, since = "", began
    while not (draft := _draft_of(client.status())).ready:
        now = time.monotonic()
        if draft.reason != reason:
            reason, since = draft.reason, now
        if now - began > limit_s or (reason and now - since > patience_s):
            raise ModelError(f"the draft cannot be used: {reason or 'the coordinator does not say why'}")
        time.sleep(POLL_S)
    report("draft and target", READY)


def _draft_of(status: pb.StatusResponse) -> pb.WorkerStatus:
    """One that is not used, if there is such."""
    drafts = [worker for worker in status.workers if worker.role == "draft"]
    nobody = pb.WorkerStatus(reason="the coordinator knows of no draft worker")
    return min(drafts, key=lambda draft: draft.ready, default=nobody)
