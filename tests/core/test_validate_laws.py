"""Bad requests are refused with a status and the name of the field that is wrong; the bounds themselves are legal."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest

from coordinator.validate import Request, check_fields, make_request
from tandem.core.types import Description, FinishReason, Rule
from tandem.errors import InvalidRequest, RequestError, StateMismatch, UnknownModel
from tandem.rpc.codec.public import parse_request
from tandem.v1 import coordinator_pb2 as pb

CONTEXT = 64
TARGET = Description(
    model="tiny",
    fingerprint="f",
    context_length=CONTEXT,
    end_token_ids=frozenset({2}),
    head_width=272,
    num_pieces=256,
    vocabulary_hash="h",
    kv_budget_tokens=4096,
    max_block=16,
    incarnation="i",
)


def prepare(prompt: int = 4, **fields: Any) -> Request:
    """The request that a message becomes; `prompt` is the number of its tokens."""
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * prompt), **fields)
    raw = parse_request(message.SerializeToString())
    check_fields(raw, "tiny")
    return make_request(raw, raw.token_ids or (), TARGET, 256)


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": pb.SamplingParams(**fields)}


def stopping(**fields: Any) -> dict[str, Any]:
    return {"stopping": pb.StoppingParams(**fields)}


def speculation(**fields: Any) -> dict[str, Any]:
    return {"speculation": pb.SpeculationParams(**fields)}


NAN, INF = math.nan, math.inf
ONE_LEFT = sampling(logit_bias={token: -100.0 for token in range(256) if token != 7})
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": 0}, "input"),
    ({"prompt": CONTEXT}, "input"),
    ({"prompt": CONTEXT + 1}, "input"),
    ({"prior_output": pb.TokenIds(ids=[272])}, "prior_output"),
    *((sampling(temperature=value), "sampling.temperature") for value in (NAN, INF, -INF, -0.5, 2.1)),
    *((sampling(top_p=value), "sampling.top_p") for value in (0.0, 1.0001, -1.0, NAN)),
    *((sampling(min_p=value), "sampling.min_p") for value in (-0.1, 1.5, NAN)),
    *((sampling(repetition_penalty=value), "sampling.repetition_penalty") for value in (0.0, -1.0, NAN, 1e30)),
    *((sampling(presence_penalty=value), "sampling.presence_penalty") for value in (2.5, NAN)),
    *((sampling(frequency_penalty=value), "sampling.frequency_penalty") for value in (99.0, -99.0, NAN)),
    *((sampling(logprobs=value), "sampling.logprobs") for value in (21, 10**6)),
    *((sampling(logit_bias={3: value}), "sampling.logit_bias") for value in (101.0, NAN, -INF)),
    (sampling(logit_bias={272: 1.0}), "sampling.logit_bias"),
    (sampling(logit_bias=dict.fromkeys(range(256), -100.0)), "sampling.logit_bias"),
    (ONE_LEFT | stopping(stop_token_ids=[7], min_tokens=1), "stopping.min_tokens"),
    (sampling(logit_bias={index % 200 + index // 200 * 1000: 1.0 for index in range(1025)}), "sampling.logit_bias"),
    *((stopping(max_tokens=value), "stopping.max_tokens") for value in (0, CONTEXT - 3, 2**31 - 1, 2**32 - 1)),
    (stopping(stop=[str(index) for index in range(10_000)]), "stopping.stop"),
    (stopping(stop=["x" * 2**19]), "stopping.stop"),
    (stopping(stop=["ok", ""]), "stopping.stop"),
    (stopping(stop=["é" * 129]), "stopping.stop"),
    (stopping(stop_token_ids=[272], min_tokens=1), "stopping.stop_token_ids"),
    (stopping(stop_token_ids=range(129)), "stopping.stop_token_ids"),
    (speculation(num_tokens=17), "speculation.num_tokens"),
    (speculation(acceptance=99), "speculation.acceptance"),
    (speculation(lookahead=99), "speculation.lookahead"),
    ({"request_id": "x" * 129}, "request_id"),
    ({"request_id": "a\nb"}, "request_id"),
]


@pytest.mark.parametrize(("fields", "field"), REFUSED, ids=str)
def test_what_is_out_of_range_is_refused_by_name(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        prepare(**fields)
    assert caught.value.field == field
    assert caught.value.status is grpc.StatusCode.INVALID_ARGUMENT
    assert len(str(caught.value)) < 400


def test_one_token_that_may_come_out_is_enough() -> None:
    """Family of requests that ban what they need: refused where nothing is left, and only there."""
    assert prepare(**ONE_LEFT)
    assert prepare(**ONE_LEFT | stopping(min_tokens=1))
    assert prepare(**ONE_LEFT | stopping(stop_token_ids=[7]))
    assert prepare(**ONE_LEFT | stopping(stop_token_ids=[7], min_tokens=1), prior_output=pb.TokenIds(ids=[1]))
    assert prepare(**sampling(logit_bias=dict.fromkeys(range(256), -99.0)))


@pytest.mark.parametrize("token", [272, 2**31 - 1, 4294967295])
def test_a_prompt_token_outside_the_head_is_refused(token: int) -> None:
    raw = parse_request(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, token])).SerializeToString())
    with pytest.raises(InvalidRequest, match=str(token)):
        make_request(raw, raw.token_ids or (), TARGET, 256)


@pytest.mark.parametrize("message", [b"\xff\xff\xff", b"\x0a\x80", b"\x2a\x04abcd", b"\x1b" * 200])
def test_garbage_is_an_invalid_request(message: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_request(message)


@pytest.mark.parametrize("model", ["nope", "../../etc/passwd", "tiny\0", "x" * 5000])
def test_another_model_is_not_found(model: str) -> None:
    with pytest.raises(UnknownModel) as caught:
        prepare(model=model)
    assert caught.value.status is grpc.StatusCode.NOT_FOUND
    assert len(str(caught.value)) < 400


def test_another_fingerprint_is_refused() -> None:
    with pytest.raises(StateMismatch) as caught:
        prepare(target_fingerprint="other")
    assert caught.value.status is grpc.StatusCode.FAILED_PRECONDITION
    assert prepare(target_fingerprint="f")


def test_branches_are_not_built() -> None:
    with pytest.raises(RequestError) as caught:
        prepare(**speculation(lookahead=pb.LOOKAHEAD_BRANCHES))
    assert caught.value.status is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("temperature", [0.0, -0.0, 1e-40, 1e-9, 1e-6, 1e-5])
def test_a_very_low_temperature_is_greedy(temperature: float) -> None:
    """Family B23."""
    assert prepare(**sampling(temperature=temperature)).rule is Rule.GREEDY


def test_the_acceptance_rule_follows_from_the_seed_unless_it_is_named() -> None:
    assert prepare().rule is Rule.REJECTION
    assert prepare(**sampling(seed=0)).rule is Rule.COUPLED
    assert prepare(**sampling(seed=0), **speculation(acceptance=pb.ACCEPTANCE_REJECTION)).rule is Rule.REJECTION
    assert prepare(**speculation(acceptance=pb.ACCEPTANCE_COUPLED)).rule is Rule.COUPLED


def test_the_bounds_themselves_are_legal() -> None:
    prepare(**sampling(temperature=2.0, top_p=1.0, min_p=1.0, top_k=2**31 - 1, logprobs=20, repetition_penalty=100.0))
    prepare(**sampling(presence_penalty=-2.0, frequency_penalty=2.0, logit_bias={271: -100.0}))
    prepare(**stopping(stop=["x" * 256] * 16, stop_token_ids=range(128), max_tokens=CONTEXT - 4))
    prepare(**speculation(num_tokens=16))
    prepare(request_id="x" * 128)


@pytest.mark.parametrize("prompt", [1, CONTEXT - 1])
def test_the_room_left_is_the_limit_where_none_was_set(prompt: int) -> None:
    """Family A13."""
    rules = prepare(prompt=prompt).stop_rules
    assert rules.max_tokens == CONTEXT - prompt and rules.full_reason is FinishReason.CONTEXT_FULL
    asked = prepare(prompt=prompt, **stopping(max_tokens=1)).stop_rules
    assert asked.max_tokens == 1 and asked.full_reason is FinishReason.MAX_TOKENS


def test_end_tokens_are_the_models_and_the_callers() -> None:
    assert prepare(**stopping(stop_token_ids=[9])).stop_rules.end_token_ids == {2, 9}
    assert prepare(**stopping(stop_token_ids=[9], ignore_eos=True)).stop_rules.end_token_ids == {9}
