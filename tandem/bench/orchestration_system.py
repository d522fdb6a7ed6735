"""The three services around simulated devices, with ways between them that can be made longer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from tandem.bench.delay import Relays, relays
from tandem.cli.launch import coordinator_address, launched
from tandem.cli.local import Flags, dial_address, local_config
from tandem.config import Config
from tandem.model.simulated import Simulation, save_simulated

TARGET = Simulation(step_s=0.025, row_s=0.00005)
DRAFT = Simulation(step_s=0.0025, agreement=0.8)
SERVICES = ("coordinator", "draft", "target")
_KV_TOKENS = 1 << 20
_MAX_ROWS = 1 << 15  # a step takes whatever is ready
_SCRAPE_S = 10.0


@dataclass(frozen=True, slots=True)
class System:
    """Services that run."""

    config: Config
    relays: Relays

    @property
    def address(self) -> str:
        """Of the coordinator."""
        return coordinator_address(self.config)

    def metrics(self, service: str) -> dict[str, float]:
        """All metrics of a service without labels, by name."""
        section = getattr(self.config, service)
        address = dial_address(section.host, section.metrics_port)
        with urlopen(f"http://{address}/metrics", timeout=_SCRAPE_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@contextmanager
def simulated_system(
    target: Simulation = TARGET, draft: Simulation = DRAFT, coordinator: Mapping[str, Any] | None = None
) -> Iterator[System]:
    """The services while entered; `coordinator` are settings of it. They listen on free ports."""
    with TemporaryDirectory(prefix="tandem-simulated-") as folder:
        models = {
            "target": str(save_simulated(Path(folder, "simulated-target"), target)),
            "draft": str(save_simulated(Path(folder, "simulated-draft"), draft)),
        }
        with relays(2) as ways:
            config = _config(models, coordinator or {})
            ways.lead_to([*config.coordinator.targets, *config.coordinator.drafts])
            ends = {role: (address,) for role, address in zip(("targets", "drafts"), ways.addresses, strict=True)}
            config = config.model_copy(update={"coordinator": config.coordinator.model_copy(update=ends)})
            with launched(config):
                yield System(config, ways)


def _config(models: dict[str, str], coordinator: Mapping[str, Any]) -> Config:
    any_port = {"port": 0, "metrics_port": 0}
    worker = {**any_port, "threads": 1, "kv_tokens": _KV_TOKENS, "max_step_tokens": _MAX_ROWS}
    flags: Flags = {
        "model": models,
        "coordinator": {**any_port, **coordinator},
        "draft": worker,
        "target": worker,
    }
    return local_config(None, flags, with_draft=True, num_cores=os.cpu_count() or 1)
