"""What is sent, and what comes back typed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tandem.client import (
    Acceptance,
    AsyncClient,
    Client,
    FinishReason,
    InvalidRequest,
    Logprobs,
    Lookahead,
    Message,
    Origin,
    ProtocolFault,
    SamplingParams,
    SpeculationStats,
    Start,
    Timing,
    WorkerStatus,
)
from tandem.client.request import Options, SamplingKeywords
from tandem.v1 import coordinator_pb2 as pb

from .asking import Asking
from .fakes import CUTS, FINGERPRINT, OUTPUT, PROMPT, SEED, TEXT, Coordinator, Mumbles, serving


def test_a_generation_is_typed(ask: Asking) -> None:
    with serving(Coordinator()) as address:
        got = ask.generate(address, prompt="Why?", request_id="mine")
    assert got.text == TEXT
    assert got.token_ids == OUTPUT
    assert (got.finish_reason, got.stop, got.stop_token_id) == (FinishReason.STOP_STRING, "!", 10)
    assert (got.num_prompt_tokens, got.num_reused_prompt_tokens, got.num_output_tokens) == (3, 2, 6)
    assert got.speculation == SpeculationStats(
        num_verifies=4, num_accepted_per_position=(2, 1), num_fallbacks={"late": 1}
    )
    assert got.timing == Timing(total_s=1.5)
    assert got.logprobs[2] == Logprobs(-2.0, ((2, -2.0),))
    assert got.origins == (Origin.PLAIN, Origin.DRAFT) * 3
    assert (got.seed, got.target_fingerprint, got.prompt_token_ids) == (SEED, FINGERPRINT, PROMPT)
    assert (got.request_id, got.num_resumptions) == ("mine", 0)


def test_a_stream_has_one_start_and_one_finish(ask: Asking) -> None:
    with serving(Coordinator()) as address:
        chunks = ask.stream(address, prompt="Why?")
    assert [chunk.offset for chunk in chunks] == [0, *CUTS[:-1]]
    assert "".join(chunk.text for chunk in chunks) == TEXT
    assert [chunk.start for chunk in chunks] == [Start(SEED, FINGERPRINT, PROMPT), None, None, None]
    assert [chunk.finish is None for chunk in chunks] == [True, True, True, False]


def test_status_is_typed(ask: Asking) -> None:
    with serving(Coordinator()) as address:
        status = ask.status(address)
    assert (status.model, status.version, status.num_running, status.num_waiting) == ("tiny", "0.1.0", 3, 0)
    assert status.workers == (WorkerStatus("target", "t:7072", True, "", "", 0, 0, 0.0, ""),)


def sent(ask: Asking, **wanted: Any) -> pb.GenerateRequest:
    coordinator = Coordinator()
    with serving(coordinator) as address:
        ask.generate(address, request_id="r", **wanted)
    return coordinator.requests[0]


def test_every_keyword_is_sent(ask: Asking) -> None:
    request = sent(
        ask,
        token_ids=[1, 2],
        sampling=SamplingParams(temperature=0.5, top_k=3, seed=0),
        temperature=0.0,
        logit_bias={7: -1.5},
        logprobs=0,
        max_tokens=9,
        stop="end",
        stop_token_ids=[4],
        ignore_eos=True,
        min_tokens=2,
        num_draft_tokens=0,
        acceptance=Acceptance.COUPLED,
        lookahead=Lookahead.CHAIN,
        model="tiny",
        cache_salt="tenant",
    )
    assert request == pb.GenerateRequest(
        request_id="r",
        model="tiny",
        token_ids=pb.TokenIds(ids=[1, 2]),
        sampling=pb.SamplingParams(temperature=0.0, top_k=3, seed=0, logit_bias={7: -1.5}, logprobs=0),
        stopping=pb.StoppingParams(max_tokens=9, stop=["end"], stop_token_ids=[4], ignore_eos=True, min_tokens=2),
        speculation=pb.SpeculationParams(num_tokens=0, acceptance=pb.ACCEPTANCE_COUPLED, lookahead=pb.LOOKAHEAD_CHAIN),
        prior_output=pb.TokenIds(),
        cache_salt="tenant",
    )


def test_what_is_left_out_is_left_to_the_coordinator(ask: Asking) -> None:
    request = sent(ask, prompt="")
    assert request.WhichOneof("input") == "text"
    assert request.sampling == pb.SamplingParams()
    assert request.stopping == pb.StoppingParams()
    assert request.speculation == pb.SpeculationParams()
    assert not request.HasField("target_fingerprint")


@pytest.mark.parametrize("turn", [Message("user", "Why?"), {"role": "user", "content": "Why?"}])
def test_a_chat_may_be_messages_or_mappings(ask: Asking, turn: Any) -> None:
    assert sent(ask, messages=[turn]).chat == pb.Chat(messages=[pb.Message(role="user", content="Why?")])


@pytest.mark.parametrize("kind", [Acceptance, Lookahead])
def test_choices_may_be_named(ask: Asking, kind: type[Acceptance] | type[Lookahead]) -> None:
    keyword = kind.__name__.lower()
    for choice in kind:
        assert sent(ask, prompt="a", **{keyword: choice}) == sent(ask, prompt="a", **{keyword: choice.name.lower()})


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"prompt": "a", "token_ids": [1]},
        {"prompt": "a", "max_token": 1},
        {"prompt": "a", "prior_output": (1,)},
        {"prompt": "a", "lookahead": "of"},
        {"prompt": "a", "acceptance": 1},
    ],
)
def test_a_wrong_call_is_a_type_error_at_once(wanted: Any) -> None:
    with pytest.raises(TypeError):
        AsyncClient().stream(**wanted)
    with Client() as client, pytest.raises(TypeError):
        client.stream(**wanted)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"prompt": "a", "top_k": -1}, "sampling.top_k"),
        ({"prompt": "a", "max_tokens": 2**32}, "stopping.max_tokens"),
        ({"prompt": "a", "stop": [1]}, "stopping.stop"),
        ({"prompt": "a", "seed": 2**64}, "sampling.seed"),
        ({"prompt": "\ud800"}, "text"),
        ({"prompt": [1]}, "text"),
        ({"token_ids": [-1]}, "token_ids.ids"),
        ({"messages": [{"role": "user", "content": None}, {"role": 1, "content": ""}]}, "chat.role"),
    ],
)
def test_a_value_that_does_not_fit_is_named_before_anything_is_sent(ask: Asking, wanted: Any, field: str) -> None:
    coordinator = Coordinator()
    with serving(coordinator) as address, pytest.raises(InvalidRequest) as caught:
        ask.generate(address, **wanted)
    assert [violation.field for violation in caught.value.violations] == [field]
    assert not coordinator.requests


def test_an_answer_that_is_no_message_is_a_protocol_fault(ask: Asking) -> None:
    with serving(Mumbles()) as address:
        with pytest.raises(ProtocolFault):
            ask.generate(address, prompt="a")
        with pytest.raises(ProtocolFault):
            ask.status(address)


def test_enum_values_of_a_newer_coordinator_read_as_unknown() -> None:
    assert Origin(99) is Origin.UNKNOWN
    assert FinishReason(99) is FinishReason.UNKNOWN


def test_sampling_keywords_are_the_fields_of_sampling_params() -> None:
    assert {field.name for field in fields(SamplingParams)} == SamplingKeywords.__optional_keys__
    assert SamplingKeywords.__optional_keys__ < Options.__optional_keys__


def test_enums_have_the_numbers_of_the_contract() -> None:
    for ours, theirs in ((Acceptance, pb.Acceptance), (Lookahead, pb.Lookahead), (Origin, pb.Origin)):
        for member in ours:
            if member.value:
                assert theirs.Name(member.value) == f"{ours.__name__.upper()}_{member.name}"
    assert [pb.FinishReason.Name(member.value) for member in FinishReason][1:] == [
        f"FINISH_REASON_{member.name}" for member in FinishReason if member.value
    ]
