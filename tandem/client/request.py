"""What is asked for: one request as plain values, and the keywords that make it."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, TypedDict, TypeVar

from tandem.client.results import Start

Choice = TypeVar("Choice", bound=Enum)


class Acceptance(Enum):
    """How draft tokens are tested where the temperature is not 0; unset: coupled with a seed, else rejection."""

    REJECTION = 1  # with a seed: the law is fixed, the text is not
    COUPLED = 2  # the text is a function of prompt, parameters and seed


class Lookahead(Enum):
    """When the next block is drafted; unset: the best there is."""

    OFF = 1  # draft, then verify, in turn
    CHAIN = 2  # while the block before it is verified
    BRANCHES = 3  # for several outcomes of the verify


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat."""

    role: str  # system, user, assistant
    content: str


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What shapes the distribution that tokens are drawn from; None leaves it to the coordinator."""

    temperature: float | None = None  # in [0, 2], default 1; 0 is greedy
    top_p: float | None = None  # in (0, 1], default 1
    top_k: int | None = None  # 0: all, the default
    min_p: float | None = None  # in [0, 1], default 0
    seed: int | None = None  # 64 bits; drawn by the coordinator if unset
    repetition_penalty: float | None = None  # in (0, 100], default 1
    presence_penalty: float | None = None  # in [-2, 2], default 0
    frequency_penalty: float | None = None  # in [-2, 2], default 0
    logit_bias: Mapping[int, float] | None = None  # token id -> added to its logit, in [-100, 100]
    logprobs: int | None = None  # of this many most likely tokens beside each emitted one; 0: of that one only


class SamplingKeywords(TypedDict, total=False):
    """The fields of SamplingParams as keywords."""

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    logit_bias: Mapping[int, float] | None
    logprobs: int | None


class Options(SamplingKeywords, total=False):
    """The keywords of generate() and stream(); a sampling keyword stands above the same field of `sampling`."""

    sampling: SamplingParams
    max_tokens: int | None  # unset: min(256, room left in the context)
    stop: str | Iterable[str]  # text ends before it
    stop_token_ids: Iterable[int]  # beside the model's own
    ignore_eos: bool
    min_tokens: int  # no end or stop token is drawn before this many
    num_draft_tokens: int | None  # per block; 0: no speculation
    acceptance: Acceptance | str | None  # or its name: rejection, coupled
    lookahead: Lookahead | str | None  # or its name: off, chain, branches
    model: str  # refuse unless this one is served
    cache_salt: str  # prompt prefixes are shared only among requests with the same one
    request_id: str  # unique among the running ones; made up if unset


@dataclass(frozen=True, slots=True)
class Request:
    """One attempt, as it will be sent. Exactly one of `text`, `messages` and `token_ids` is set."""

    request_id: str
    text: str | None = None
    messages: tuple[Message, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    sampling: SamplingParams = SamplingParams()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    num_draft_tokens: int | None = None
    acceptance: Acceptance | None = None
    lookahead: Lookahead | None = None
    model: str = ""
    cache_salt: str = ""
    prior_output: tuple[int, ...] = ()
    target_fingerprint: str | None = None

    def going_on(self, start: Start, output: Sequence[int]) -> Request:
        """The same generation from `output` on.

        The prompt goes as the ids that it became, so that no other template can change it, and the rule is named:
        a seed alone would select the coupled one, and another law for the rest of the text.
        """
        return replace(
            self,
            text=None,
            messages=None,
            token_ids=start.prompt_token_ids,
            sampling=replace(self.sampling, seed=start.seed),
            acceptance=self.acceptance or self._rule_unless_named(),
            prior_output=tuple(output),
            target_fingerprint=start.target_fingerprint,
        )

    def _rule_unless_named(self) -> Acceptance:
        return Acceptance.REJECTION if self.sampling.seed is None else Acceptance.COUPLED


def make_request(
    prompt: str | None,
    messages: Iterable[Message | Mapping[str, str]] | None,
    token_ids: Iterable[int] | None,
    options: Options,
) -> Request:
    """Raises TypeError for what is wrong with the call; values are the coordinator's to judge."""
    if (prompt is not None) + (messages is not None) + (token_ids is not None) != 1:
        raise TypeError("give exactly one of prompt, messages and token_ids")
    if unknown := options.keys() - Options.__optional_keys__:
        raise TypeError(f"unknown keywords: {', '.join(sorted(unknown))}")
    rest: dict[str, Any] = dict(options)
    sampling = rest.pop("sampling", SamplingParams())
    above = {field.name: rest.pop(field.name) for field in fields(SamplingParams) if field.name in rest}
    stop = rest.pop("stop", ())
    return Request(
        request_id=rest.pop("request_id", "") or uuid.uuid4().hex,
        text=prompt,
        messages=None if messages is None else tuple(map(_message, messages)),
        token_ids=None if token_ids is None else tuple(token_ids),
        sampling=replace(sampling, **above),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(rest.pop("stop_token_ids", ())),
        acceptance=_named(Acceptance, "acceptance", rest.pop("acceptance", None)),
        lookahead=_named(Lookahead, "lookahead", rest.pop("lookahead", None)),
        **rest,
    )


def _message(turn: Message | Mapping[str, str]) -> Message:
    return Message(**turn) if isinstance(turn, Mapping) else turn


def _named(kind: type[Choice], keyword: str, value: Choice | str | None) -> Choice | None:
    if value is None or isinstance(value, kind):
        return value
    names = [choice.name.lower() for choice in kind]
    if not isinstance(value, str) or value.lower() not in names:
        raise TypeError(f"{keyword}: {value!r} is none of {', '.join(names)}")
    return kind[value.upper()]
