"""The command line: `tandem up`, `demo`, `generate`, `chat`, `status`, `config`, and the three services."""

from tandem.cli.app import main

__all__ = ["main"]
