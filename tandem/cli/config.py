"""`tandem config`: the settings that are in force, as YAML."""

from __future__ import annotations

from typing import Annotated

import typer
import yaml

from tandem.cli.services import ConfigFile
from tandem.config import Config, load_config


def config(
    config: ConfigFile = None,
    check: Annotated[bool, typer.Option("--check", help="Only say whether the settings are valid.")] = False,
) -> None:
    """Print the effective settings: file, then environment."""
    settings = load_config(config)
    typer.echo(f"{config or 'configuration'}: valid" if check else as_yaml(settings), nl=check)


def as_yaml(settings: Config) -> str:
    return yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
