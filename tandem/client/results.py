"""What a client gets back: plain frozen values.

An enum value that this client does not know yet, from a newer coordinator, reads as UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class FinishReason(Enum):
    """Why a generation ended."""

    UNKNOWN = 0
    END_TOKEN = 1
    STOP_STRING = 2
    MAX_TOKENS = 3
    CONTEXT_FULL = 4

    @classmethod
    def _missing_(cls, value: object) -> FinishReason:
        return cls.UNKNOWN


class Origin(Enum):
    """How an output token came to be."""

    UNKNOWN = 0
    DRAFT = 1  # drafted and accepted
    CORRECTION = 2  # the target's token at a rejected position
    BONUS = 3  # the target's token after a fully accepted block
    PLAIN = 4  # decoded without a draft

    @classmethod
    def _missing_(cls, value: object) -> Origin:
        return cls.UNKNOWN


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logs under the target after penalties, bias and temperature (0 counts as 1), before truncation."""

    logprob: float  # of the emitted token
    top: tuple[tuple[int, float], ...] = ()  # token ids and logs, the most likely first


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did; after a resumption, since the last one."""

    num_verifies: int = 0
    num_draft_tokens: int = 0  # sent to a verify
    num_accepted_tokens: int = 0  # of those, made final
    num_accepted_per_position: tuple[int, ...] = ()
    num_rollbacks: int = 0
    num_ahead_hits: int = 0
    num_wasted_draft_tokens: int = 0  # drafted, never verified
    num_fallbacks: Mapping[str, int] = field(default_factory=dict)  # by cause


@dataclass(frozen=True, slots=True)
class Timing:
    """Durations as the coordinator saw them; after a resumption, since the last one."""

    queue_s: float = 0.0  # before the first model call
    first_token_s: float = 0.0
    total_s: float = 0.0
    verify_s: float = 0.0
    draft_wait_s: float = 0.0  # in which no verify ran because a draft was awaited
    prompt_s: float = 0.0  # of verify_s: the first verify, which computes the prompt


@dataclass(frozen=True, slots=True)
class Start:
    """What a generation began with, and all that is needed to go on with it elsewhere."""

    seed: int
    target_fingerprint: str
    prompt_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """How a generation ended."""

    reason: FinishReason
    stop: str = ""  # the stop string that matched
    stop_token_id: int | None = None  # the end or stop token that was drawn
    num_prompt_tokens: int = 0
    num_reused_prompt_tokens: int = 0  # found in the target's cache, not computed; after a resumption, by the last one
    num_output_tokens: int = 0
    speculation: SpeculationStats = SpeculationStats()
    timing: Timing = Timing()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tokens that became final together. Joined, the texts of all chunks are the text of the generation."""

    request_id: str
    offset: int  # index of the first token in the output
    token_ids: tuple[int, ...]
    text: str  # what these tokens add; never half a character
    logprobs: tuple[Logprobs, ...] = ()  # one per token, when asked for
    origins: tuple[Origin, ...] = ()  # one per token
    start: Start | None = None  # on the first chunk only
    finish: Finish | None = None  # on the last chunk only


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished generation."""

    text: str
    token_ids: tuple[int, ...]  # with the end token or the tokens of the stop string, which are not in the text
    finish_reason: FinishReason
    stop: str  # the stop string that matched
    stop_token_id: int | None
    num_prompt_tokens: int
    num_reused_prompt_tokens: int
    num_output_tokens: int
    speculation: SpeculationStats
    timing: Timing
    logprobs: tuple[Logprobs, ...]
    origins: tuple[Origin, ...]
    seed: int
    target_fingerprint: str
    prompt_token_ids: tuple[int, ...]
    request_id: str  # of the first attempt; the n-th has /n behind it
    num_resumptions: int  # times it went on after a failure with tokens already there


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker behind a coordinator."""

    role: str  # draft or target
    address: str
    ready: bool
    model: str
    fingerprint: str
    tensor_parallel_size: int
    num_sessions: int
    kv_used: float  # share of the KV budget, 0 to 1
    reason: str  # why it is not ready or not used


@dataclass(frozen=True, slots=True)
class Status:
    """What is served, by whom, and how much runs."""

    model: str
    version: str
    workers: tuple[WorkerStatus, ...]
    num_running: int
    num_waiting: int
