"""The nouns that cross a border: between services, between coordinator and ledger, between worker and engine.

prompt     the ids a request starts with
committed  prompt and output tokens that are final; only the target makes a token final
block      a run of draft tokens, with what the verifier needs to know of how they were drawn
verdict    the number of draft tokens accepted, and the target's own next token
commit     the tokens that one verdict makes final, after the stopping rules
round      one propose (or its absence) and the verify of its block; every attempt at a block has a number of its own,
           so that no two blocks of one generation are ever drawn with the same noise
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Rule(Enum):
    """How a block is drawn and tested (docs/exactness.md)."""

    GREEDY = 1
    REJECTION = 2
    COUPLED = 3


class Origin(Enum):
    """How a committed token came to be."""

    DRAFT = 1
    CORRECTION = 2
    BONUS = 3
    PLAIN = 4


class FinishReason(Enum):
    END_TOKEN = 1
    STOP_STRING = 2
    MAX_TOKENS = 3
    CONTEXT_FULL = 4


GREEDY_TEMPERATURE = 1e-5  # up to here a temperature means greedy
BANNING_BIAS = -100.0  # a bias this low bans the token


@dataclass(frozen=True, slots=True)
class Sampling:
    """Parameters that shape a distribution; the defaults change nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # None: not asked for; 0: of the emitted token only

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE

    @property
    def banned_ids(self) -> set[int]:
        """Tokens that are never drawn."""
        return {token for token, bias in self.logit_bias.items() if bias <= BANNING_BIAS}


@dataclass(frozen=True, slots=True)
class Call:
    """The part that a propose and a verify share."""

    session_id: bytes
    number: int  # counts up per session
    round: int
    rule: Rule
    max_length: int  # tokens, prompt and output together, that this generation may reach
    seed: int = 0
    sampling: Sampling = Sampling()
    min_tokens: int = 0
    end_token_ids: frozenset[int] = frozenset()
    budget_s: float | None = None
    reserve_whole: bool = False  # start only with memory for `max_length`; then never preempted
    salt: str = ""
    drafter: str = ""


@dataclass(frozen=True, slots=True)
class Prefix:
    """The tokens a call stands on: [0, start) as the worker has them, then `tokens`."""

    length: int
    num_committed: int
    num_prompt_tokens: int
    digest: int  # 64 bits, see tandem.core.prefix
    start: int
    tokens: tuple[int, ...]  # [start, length)


@dataclass(frozen=True, slots=True)
class SparseDistribution:
    """q as the draft really drew from it: ids and their positive float32 weights; 0 elsewhere."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Block:
    tokens: tuple[int, ...] = ()
    q: tuple[SparseDistribution, ...] = ()  # one per token under rejection, else empty
    round: int = 0
    drafter: str = ""


@dataclass(frozen=True, slots=True)
class Verify:
    call: Call
    prefix: Prefix
    block: Block
    ahead_round: int | None = None  # of the block drafted meanwhile; its noise draws the bonus


@dataclass(frozen=True, slots=True)
class Propose:
    call: Call
    prefix: Prefix
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Cancel:
    session_id: bytes
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    session_id: bytes


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logs under the target after penalties, bias and temperature (0 counts as 1), before truncation."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    num_accepted: int
    next_token: int
    logprobs: tuple[Logprobs, ...] = ()  # of the accepted tokens and the next one, when asked for
    num_reused: int = 0  # positions that the session found in the cache when it began


@dataclass(frozen=True, slots=True)
class Drafted:
    """Tokens of a block as they are drawn; those of one call follow one another."""

    tokens: tuple[int, ...]
    q: tuple[SparseDistribution, ...] = ()
    drafter: str = ""
    done: bool = False
    offset: int = 0  # of the first token in the block: a repetition must not be taken for more


class RefusalReason(Enum):
    MISSING = 1  # resend from `have`
    STALE = 2  # a higher call number was seen
    FULL = 3  # no memory for a new session
    RELEASED = 4  # the session has ended
    INVALID = 5
    ENDED = 6  # by a cancel or by a higher call
    FAULT = 7
    PREEMPTED = 8  # its memory went to an older session; state the prefix again when there is room


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: RefusalReason
    message: str = ""
    have: int = 0


@dataclass(frozen=True, slots=True)
class Reply:
    session_id: bytes
    number: int
    body: Verdict | Drafted | Refusal
    queue_ns: int = 0
    compute_ns: int = 0


@dataclass(frozen=True, slots=True)
class Malformed:
    """A call of which no Verify or Propose could be made; it is refused, and those beside it are not touched."""

    session_id: bytes
    number: int
    message: str


Item = Verify | Propose | Cancel | Release | Malformed


@dataclass(frozen=True, slots=True)
class Description:
    """Who a worker is (the answer to Describe)."""

    model: str
    fingerprint: str
    context_length: int
    end_token_ids: frozenset[int]
    head_width: int
    num_pieces: int
    vocabulary_hash: str
    kv_budget_tokens: int
    max_block: int
    incarnation: str
    tensor_parallel_size: int = 1
    num_sessions: int = 0
    kv_used_tokens: int = 0
    drafters: tuple[str, ...] = ()
