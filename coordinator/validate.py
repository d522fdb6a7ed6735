"""From a request as it came to a request that can run. Every refusal names the field.

Range checks are written as `not (low <= x <= high)`: NaN passes the other way round.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence, Set
from dataclasses import dataclass

from tandem.core.stopping import StopRules
from tandem.core.types import Description, FinishReason, Rule, Sampling
from tandem.errors import InvalidRequest, StateMismatch, UnknownModel, UnsupportedRequest
from tandem.rpc.codec.public import (
    ACCEPTANCE_COUPLED,
    ACCEPTANCE_REJECTION,
    ACCEPTANCES,
    LOOKAHEAD_BRANCHES,
    LOOKAHEAD_CHAIN,
    LOOKAHEAD_OFF,
    LOOKAHEADS,
    RawRequest,
)

MAX_DRAFT_TOKENS = 16
_LOOKAHEADS: dict[int, bool] = {LOOKAHEAD_OFF: False, LOOKAHEAD_CHAIN: True}
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_STOPS, MAX_STOP_BYTES = 16, 256
MAX_REQUEST_ID = 128


@dataclass(frozen=True, slots=True)
class Request:
    """A request that can run."""

    prompt: tuple[int, ...]
    sampling: Sampling
    rule: Rule
    seed: int
    stop_rules: StopRules
    min_tokens: int
    num_draft_tokens: int | None  # None: as the coordinator chooses
    lookahead: bool | None  # drafting ahead; None: as the coordinator chooses
    prior_output: tuple[int, ...]
    salt: str

    @property
    def max_length(self) -> int:
        return len(self.prompt) + self.stop_rules.max_tokens


def check_fields(raw: RawRequest, model: str) -> None:
    """Everything that can be checked without the prompt's tokens. Raises RequestError."""
    if len(raw.request_id) > MAX_REQUEST_ID or not raw.request_id.isprintable():
        raise InvalidRequest("request_id", f"more than {MAX_REQUEST_ID} characters, or not printable")
    if raw.model and raw.model != model:
        raise UnknownModel(f"model: {raw.model!r:.100} is not served here")
    _check_sampling(raw.sampling)
    _check_stopping(raw)
    _check_speculation(raw)


def make_request(raw: RawRequest, prompt: Sequence[int], target: Description, default_max_tokens: int) -> Request:
    """The request, once its prompt has been turned into `prompt`. Raises InvalidRequest, StateMismatch."""
    _check_ids("prompt", prompt, target.head_width)
    _check_ids("prior_output", raw.prior_output, target.head_width)
    _check_ids("stopping.stop_token_ids", raw.stop_token_ids, target.head_width)
    _check_ids("sampling.logit_bias", tuple(raw.sampling.logit_bias), target.head_width)
    if raw.target_fingerprint is not None and raw.target_fingerprint != target.fingerprint:
        raise StateMismatch("target_fingerprint: the target served here is another one")
    rule = _rule(raw)
    ends = (frozenset() if raw.ignore_eos else target.end_token_ids) | set(raw.stop_token_ids)
    _check_bans(raw, ends, min(target.num_pieces, target.head_width))
    return Request(
        prompt=tuple(prompt),
        sampling=raw.sampling,
        rule=rule,
        seed=secrets.randbits(64) if raw.seed is None else raw.seed,
        stop_rules=_stop_rules(raw, len(prompt), target, ends, default_max_tokens),
        min_tokens=raw.min_tokens,
        num_draft_tokens=raw.num_draft_tokens,
        lookahead=_LOOKAHEADS.get(raw.lookahead),
        prior_output=raw.prior_output,
        salt=raw.cache_salt,
    )


def _check_range(name: str, value: float, low: float, high: float, above_low: bool = False) -> None:
    if not (low <= value <= high) or (above_low and value == low):
        raise InvalidRequest(name, f"{value} is not in {'(' if above_low else '['}{low:g}, {high:g}]")


def _check_sampling(sampling: Sampling) -> None:
    _check_range("sampling.temperature", sampling.temperature, 0, 2)
    _check_range("sampling.top_p", sampling.top_p, 0, 1, above_low=True)
    _check_range("sampling.min_p", sampling.min_p, 0, 1)
    _check_range("sampling.repetition_penalty", sampling.repetition_penalty, 0, 100, above_low=True)
    _check_range("sampling.presence_penalty", sampling.presence_penalty, -2, 2)
    _check_range("sampling.frequency_penalty", sampling.frequency_penalty, -2, 2)
    if len(sampling.logit_bias) > MAX_LOGIT_BIAS:
        raise InvalidRequest("sampling.logit_bias", f"more than {MAX_LOGIT_BIAS} entries")
    for bias in sampling.logit_bias.values():
        _check_range("sampling.logit_bias", bias, -100, 100)
    if sampling.logprobs is not None:
        _check_range("sampling.logprobs", sampling.logprobs, 0, MAX_LOGPROBS)


def _check_stopping(raw: RawRequest) -> None:
    if raw.max_tokens is not None:
        _check_range("stopping.max_tokens", raw.max_tokens, 1, math.inf)
    if len(raw.stops) > MAX_STOPS:
        raise InvalidRequest("stopping.stop", f"more than {MAX_STOPS} strings")
    for stop in raw.stops:
        _check_range("stopping.stop", len(stop.encode()), 1, MAX_STOP_BYTES)
    if len(raw.stop_token_ids) > MAX_STOP_TOKEN_IDS:
        raise InvalidRequest("stopping.stop_token_ids", f"more than {MAX_STOP_TOKEN_IDS}")


def _check_speculation(raw: RawRequest) -> None:
    if raw.num_draft_tokens is not None:
        _check_range("speculation.num_tokens", raw.num_draft_tokens, 0, MAX_DRAFT_TOKENS)
    if raw.acceptance not in ACCEPTANCES:
        raise InvalidRequest("speculation.acceptance", f"{raw.acceptance} is unknown")
    if raw.lookahead not in LOOKAHEADS:
        raise InvalidRequest("speculation.lookahead", f"{raw.lookahead} is unknown")
    if raw.lookahead == LOOKAHEAD_BRANCHES:
        raise UnsupportedRequest("speculation.lookahead: LOOKAHEAD_BRANCHES is not built yet")


def _check_ids(name: str, ids: Sequence[int], head_width: int) -> None:
    worst = max(ids, default=0)
    if worst >= head_width:
        raise InvalidRequest(name, f"token id {worst} is not below {head_width}")


def _check_bans(raw: RawRequest, ends: Set[int], num_ids: int) -> None:
    """A request that lets no token come out can only fail."""
    banned = raw.sampling.banned_ids
    if _are_all(banned, num_ids):
        raise InvalidRequest("sampling.logit_bias", "bans every token")
    if len(raw.prior_output) < raw.min_tokens and _are_all(banned | ends, num_ids):
        raise InvalidRequest("stopping.min_tokens", "bans the end tokens, all that sampling.logit_bias leaves")


def _are_all(ids: Set[int], num_ids: int) -> bool:
    return len(ids) >= num_ids and ids >= set(range(num_ids))


def _rule(raw: RawRequest) -> Rule:
    if raw.sampling.is_greedy:
        return Rule.GREEDY
    if raw.acceptance == ACCEPTANCE_COUPLED:
        return Rule.COUPLED
    if raw.acceptance == ACCEPTANCE_REJECTION or raw.seed is None:
        return Rule.REJECTION
    return Rule.COUPLED


def _stop_rules(
    raw: RawRequest, num_prompt: int, target: Description, ends: frozenset[int], default_max_tokens: int
) -> StopRules:
    room = target.context_length - num_prompt
    if num_prompt == 0:
        raise InvalidRequest("input", "the prompt has no tokens")
    if room <= 0:
        raise InvalidRequest("input", f"{num_prompt} prompt tokens fill the context of {target.context_length}")
    if raw.max_tokens is not None and raw.max_tokens > room:
        raise InvalidRequest("stopping.max_tokens", f"{raw.max_tokens} exceeds the {room} tokens left in the context")
    limited = raw.max_tokens is None and room < default_max_tokens
    max_tokens = raw.max_tokens or min(default_max_tokens, room)
    if num_prompt + max_tokens + 1 > target.kv_budget_tokens:
        raise InvalidRequest(
            "stopping.max_tokens",
            f"prompt and output can never fit the target's {target.kv_budget_tokens} tokens of KV",
        )
    return StopRules(
        max_tokens=max_tokens,
        full_reason=FinishReason.CONTEXT_FULL if limited else FinishReason.MAX_TOKENS,
        end_token_ids=ends,
        stops=raw.stops,
    )
