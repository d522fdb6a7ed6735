"""The rows of a latency bench by name: whose engine, and how it is asked; and the set-ups they run on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from tandem.client import Lookahead
from tandem.client.request import Options
from tandem.errors import ConfigError

TRANSFORMERS, ASSISTED = "transformers", "assisted"
PLAIN, IN_TURN, PIPELINED, ADAPTIVE = "plain", "in-turn", "pipelined", "adaptive"
VLLM, VLLM_DRAFT = "vllm", "vllm-draft"
LLAMACPP, LLAMACPP_STORED = "llamacpp-f32", "llamacpp-stored"  # the GGUF file's weights as float32, and as they are

OWN = (PLAIN, IN_TURN, PIPELINED, ADAPTIVE)
WITHOUT_PEERS = (TRANSFORMERS, ASSISTED, *OWN)
OF_PEER = {"vllm": (VLLM, VLLM_DRAFT), "llamacpp": (LLAMACPP, LLAMACPP_STORED)}
_KINDS = (*WITHOUT_PEERS, *OF_PEER["vllm"], *OF_PEER["llamacpp"])
_WITH_LENGTH = (IN_TURN, PIPELINED, VLLM_DRAFT)  # these draft blocks of a fixed length, "in-turn:4"
_LONGEST_BLOCK = 8


class Setup(Enum):
    """What target and draft run on. Other engines always have all cores."""

    SHARED = "shared"  # both on all cores
    TWO_DEVICES = "two-devices"  # each on cores of its own


def parse_rows(text: str, num_tokens: int, peers: Sequence[str]) -> tuple[str, ...]:
    """The rows named in `text`, all that `peers` allow where it is empty; with the length of blocks, by default
    `num_tokens`, behind those that have one. Raises ConfigError naming the row.
    """
    allowed = (*WITHOUT_PEERS, *(row for peer in peers for row in OF_PEER[peer]))
    asked = [part.strip() for part in text.split(",")] if text else allowed
    rows = tuple(_completed(name, num_tokens) for name in asked)
    for row in rows:
        if kind_and_length(row)[0] not in allowed:
            raise ConfigError(f"rows: {row!r} needs a --peer; there are {', '.join(allowed)}")
    if len(set(rows)) != len(rows):
        raise ConfigError(f"rows: {text!r} names one twice")
    return rows


def kind_and_length(row: str) -> tuple[str, int]:
    """("in-turn", 4) of "in-turn:4"; length 0 where the row has none."""
    kind, _, length = row.partition(":")
    return kind, int(length or 0)


def is_drafted(row: str) -> bool:
    """Whether Tandem's draft worker has a part in it."""
    return kind_and_length(row)[0] in (IN_TURN, PIPELINED, ADAPTIVE)


def options(row: str) -> Options:
    """How Tandem is asked for one of OWN."""
    kind, length = kind_and_length(row)
    if kind == PLAIN:
        return Options(num_draft_tokens=0)
    if kind == ADAPTIVE:
        return Options()
    return Options(num_draft_tokens=length, lookahead=Lookahead.OFF if kind == IN_TURN else Lookahead.CHAIN)


def _completed(name: str, num_tokens: int) -> str:
    kind, colon, length = name.partition(":")
    if kind not in _KINDS:
        raise ConfigError(f"rows: {name!r} is none of {', '.join(_KINDS)}")
    if kind not in _WITH_LENGTH and not colon:
        return kind
    length = length or str(num_tokens)
    if kind not in _WITH_LENGTH or not length.isdigit() or not 1 <= int(length) <= _LONGEST_BLOCK:
        raise ConfigError(f"rows: {name!r}: {', '.join(_WITH_LENGTH)} take a length from 1 to {_LONGEST_BLOCK}")
    return f"{kind}:{int(length)}"
