"""What a distillation is asked to do; kept beside its work, so that it goes on as it began."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tandem.distill.shards import replace_file
from tandem.errors import ConfigError

WORK = "work"  # the subfolder of all that is unfinished
SETTINGS = "settings.json"


@dataclass(frozen=True, slots=True)
class Settings:
    """All that determines the result but the time."""

    target: str  # a model's name, as `resolve` takes it
    layers: str = "2"  # all, a count, or indices of the target's layers
    head: int = 16_384  # rows of the output head
    start: str = ""  # a folder of draft layers to start from, in place of the target's own
    search: bool = False  # try several depths and widths, and go on with the one of best expected speed-up
    rate: float = 1e-3  # of learning, at its peak
    seed: int = 0
    rows: int = 96  # texts written at once
    length: int = 224  # tokens of each
    batch: int = 12  # rows of one step of learning


# On a GPU, where a step of few rows costs as much as one of hundreds.
ON_GPU = {"rows": 512, "batch": 64}


def claim(out: Path, resume: bool, **wishes: Any) -> Settings:
    """The settings of the work in folder `out`: new ones, or with `resume` those that it was begun with.

    `wishes`: fields of Settings, None where not asked for. Raises ConfigError where there is work and `resume` is not
    set, where there is none and it is, and naming the field in which the work was begun otherwise.
    """
    path = out / WORK / SETTINGS
    asked = {name: value for name, value in wishes.items() if value is not None}
    if path.exists() != resume:
        found = f"work already: resume it with --resume, or delete {out / WORK}"
        raise ConfigError(f"out: {out} holds " + ("no work to resume" if resume else found))
    if not resume:
        settings = Settings(**asked)
        replace_file(path, lambda beside: beside.write_text(json.dumps(asdict(settings), indent=2) + "\n"))
        return settings
    begun = Settings(**json.loads(path.read_text()))
    for name, value in asked.items():
        if value != getattr(begun, name):
            raise ConfigError(f"{name}: {value}, but the work was begun with {getattr(begun, name)}")
    return begun
