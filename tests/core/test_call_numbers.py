"""What a call number means to an engine. Families D52, D54, D55, I91."""

from __future__ import annotations

import random

import pytest
import torch
from harness.scripted import ScriptedModel, draft_engine, greedy, target_engine, whole_history
from harness.worker_calls import call, propose, session_id, verify

from tandem.core.types import Cancel, Drafted, Refusal, RefusalReason, Release, Reply, Verdict
from tandem.model.engine import Engine

V = 6
TRUTH = whole_history(V, 1)
TEXT = [1, 2, 3, 4]


def target(**options: int) -> Engine:
    return target_engine(ScriptedModel(TRUTH), V, lambda: 0, num_blocks=64, **options)


def draft(**options: int) -> Engine:
    return draft_engine(ScriptedModel(TRUTH), V, lambda: 0, num_blocks=64, **options)


def steps(engine: Engine) -> list[Reply]:
    """Runs until nothing is left to do."""
    replies = []
    while engine.busy:
        replies += [reply for _, reply in engine.step()]
        engine.table.check()
    return replies


def ask(engine: Engine, *items: object) -> list[Reply]:
    engine.receive("stream", items)  # type: ignore[arg-type]
    return steps(engine)


def reason(reply: Reply) -> RefusalReason:
    assert isinstance(reply.body, Refusal), reply
    return reply.body.reason


def test_a_lower_number_is_stale_and_changes_nothing() -> None:
    engine = target()
    ask(engine, verify(1, 5, TEXT))
    session = engine.table.sessions[session_id(1)]
    before = (session.tokens[:], session.cached_len, session.last_call, list(session.blocks))
    (reply,) = ask(engine, verify(1, 4, [5, 5, 5], [1]))
    assert reason(reply) is RefusalReason.STALE and reply.number == 4
    assert (session.tokens[:], session.cached_len, session.last_call, list(session.blocks)) == before


def test_a_lower_number_does_not_end_the_running_call() -> None:
    engine = draft()
    engine.receive("stream", [propose(1, 5, TEXT, 3)])
    engine.step()
    replies = ask(engine, propose(1, 4, [5, 5], 2))
    assert [reason(reply) for reply in replies if isinstance(reply.body, Refusal)] == [RefusalReason.STALE]
    drafted = [token for reply in replies if isinstance(reply.body, Drafted) for token in reply.body.tokens]
    assert drafted == greedy(TRUTH, TEXT, 3)[1:]


def test_an_equal_number_gets_the_same_answer_without_another_forward_pass() -> None:
    engine = target()
    first = ask(engine, verify(1, 1, TEXT, [0, 0]))
    num_plans = len(engine._model._model.plans)  # type: ignore[attr-defined]
    assert ask(engine, verify(1, 1, TEXT, [0, 0])) == first
    assert len(engine._model._model.plans) == num_plans  # type: ignore[attr-defined]


def test_an_equal_number_gets_the_same_refusal() -> None:
    engine = target()
    ask(engine, verify(1, 1, TEXT))
    missing = ask(engine, verify(1, 2, [9] * 8, start=6))
    assert reason(missing[0]) is RefusalReason.MISSING
    assert ask(engine, verify(1, 2, [9] * 8, start=6)) == missing


def test_an_equal_number_of_a_proposal_gets_all_its_tokens_again() -> None:
    engine = draft()
    first = ask(engine, propose(1, 1, TEXT, 3))
    assert [reply.body.tokens for reply in first] == [(token,) for token in greedy(TRUTH, TEXT, 3)]  # type: ignore
    assert ask(engine, propose(1, 1, TEXT, 3)) == first


def test_a_higher_number_ends_the_running_call_and_keeps_what_it_finished() -> None:
    engine = target(max_step_tokens=4)
    text = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4]
    engine.receive("stream", [verify(1, 1, text)])
    engine.step()  # a first chunk of the prompt
    assert engine.table.sessions[session_id(1)].cached_len == 4
    ended, answer = ask(engine, verify(1, 2, text))
    assert (ended.number, reason(ended)) == (1, RefusalReason.ENDED)
    assert answer.body == Verdict(0, greedy(TRUTH, text, 1)[0])
    fed = [len(plan.sequences[0].tokens) for plan in engine._model._model.plans]  # type: ignore[attr-defined]
    assert sum(fed) == len(text), "finished positions were fed again"


def test_a_cancel_ends_its_call_alone_and_no_session() -> None:
    engine = draft()
    engine.receive("stream", [propose(1, 1, TEXT, 8)])
    engine.step()
    (ended,) = ask(engine, Cancel(session_id(1), 1), Cancel(session_id(1), 1), Cancel(session_id(1), 7))
    assert reason(ended) is RefusalReason.ENDED
    session = engine.table.sessions[session_id(1)]
    assert session.cached_len == len(TEXT), "finished positions stay"
    again = ask(engine, propose(1, 2, TEXT, 2))
    assert [reply.body.tokens[0] for reply in again] == greedy(TRUTH, TEXT, 2)  # type: ignore[union-attr]


def test_a_release_ends_the_running_call_and_later_ones_are_refused() -> None:
    engine = draft()
    engine.receive("stream", [propose(1, 1, TEXT, 8)])
    engine.step()
    assert ask(engine, Release(session_id(1)), Release(session_id(1))) == []
    assert not engine.table.sessions and engine.table.pool.num_used == 0
    (late,) = ask(engine, propose(1, 2, TEXT, 2))
    assert reason(late) is RefusalReason.RELEASED


def test_a_closed_stream_ends_its_calls_and_no_others() -> None:
    engine = draft()
    engine.receive("a", [propose(1, 1, TEXT, 8)])
    engine.receive("b", [propose(2, 1, TEXT, 2)])
    engine.close_stream("a")
    assert {stream for stream, _ in [answer for _ in range(3) for answer in engine.step()]} == {"b"}
    assert not engine.busy


def test_the_budget_ends_a_proposal_with_what_it_has() -> None:
    now = 0
    engine = draft_engine(ScriptedModel(TRUTH), V, lambda: now, num_blocks=64)
    item = propose(1, 1, TEXT, 8)
    engine.receive("s", [type(item)(call(1, 1, budget_s=0.5), item.prefix, 8)])
    engine.step()
    now = 10**9
    ((_, reply),) = engine.step()
    assert reply.body == Drafted((), drafter="model", done=True, offset=1)


def test_missing_tokens_are_asked_for_from_where_the_worker_stands() -> None:
    engine = target()
    (new,) = ask(engine, verify(1, 1, TEXT, start=3))
    assert isinstance(new.body, Refusal) and (new.body.reason, new.body.have) == (RefusalReason.MISSING, 0)
    ask(engine, verify(1, 2, TEXT))
    (gap,) = ask(engine, verify(1, 3, [*TEXT, 1, 2, 3], start=6))
    assert isinstance(gap.body, Refusal) and gap.body.have == len(TEXT)
    (other,) = ask(engine, verify(1, 4, [1, 2, 5, 4, 1], start=4))
    assert isinstance(other.body, Refusal) and other.body.have == 0


@pytest.mark.parametrize(
    ("item", "field"),
    [
        (verify(1, 1, TEXT, [V]), "block.tokens"),
        (verify(1, 1, TEXT, [2**32 - 1]), "block.tokens"),
        (verify(1, 1, TEXT, [1] * 17), "block.tokens"),
        (verify(1, 1, [1, V]), "prefix.tokens"),
        (propose(1, 1, TEXT, 2), "propose"),
    ],
)
def test_a_call_that_breaks_the_contract_is_invalid_and_the_session_goes_on(item: object, field: str) -> None:
    """Family B31, I95."""
    engine = target()
    (refused,) = ask(engine, item)
    assert reason(refused) is RefusalReason.INVALID and field in refused.body.message  # type: ignore[union-attr]
    (answer,) = ask(engine, verify(1, 2, TEXT))
    assert isinstance(answer.body, Verdict)


class Poisoned:
    """A model that raises, or gives NaN, for sequences that begin with 5."""

    def __init__(self, raises: bool) -> None:
        self._model = ScriptedModel(TRUTH)
        self._raises = raises

    def forward(self, plan: object) -> torch.Tensor:
        logits = self._model.forward(plan)  # type: ignore[arg-type]
        row = 0
        for sequence in plan.sequences:  # type: ignore[attr-defined]
            if sequence.start == 0 and sequence.tokens[0] == 5:
                if self._raises:
                    raise RuntimeError("boom")
                logits[row : row + sequence.num_logits] = torch.nan
            row += sequence.num_logits
        return logits


def test_nan_logits_fail_one_request_and_not_its_neighbours() -> None:
    """Family B30."""
    engine = target_engine(Poisoned(raises=False), V, lambda: 0, num_blocks=64)
    bad, good = ask(engine, verify(1, 1, [5, 1]), verify(2, 1, TEXT))
    assert reason(bad) is RefusalReason.FAULT
    assert good.body == Verdict(0, greedy(TRUTH, TEXT, 1)[0])


def test_a_failed_forward_pass_fails_its_calls_and_not_the_engine() -> None:
    engine = target_engine(Poisoned(raises=True), V, lambda: 0, num_blocks=64)
    assert [reason(reply) for reply in ask(engine, verify(1, 1, [5, 1]))] == [RefusalReason.FAULT]
    assert engine.table.sessions[session_id(1)].cached_len == 0, "rises only after the step has finished"
    (good,) = ask(engine, verify(2, 1, TEXT))
    assert isinstance(good.body, Verdict)


@pytest.mark.parametrize("seed", range(5))
def test_verdicts_are_those_of_a_cacheless_model_whatever_was_called_before(seed: int) -> None:
    """Random calls of a few sessions, some ended early: any stale cache entry would change a verdict."""
    rng = random.Random(seed)
    engine = target(max_step_tokens=rng.choice([3, 8, 512]))
    texts = {index: rng.choices(range(V), k=rng.randrange(1, 9)) for index in range(3)}
    for number in range(1, 400):
        index = rng.randrange(3)
        text = texts[index]
        if len(text) > 30:
            texts[index] = text = text[: rng.randrange(1, 9)]
        block = greedy(TRUTH, text, rng.randrange(4)) + rng.choices(range(V), k=rng.randrange(2))
        engine.receive("s", [verify(index, number, text, block)])
        replies = [reply for _ in range(rng.randrange(1, 4)) for _, reply in engine.step()]
        engine.table.check()
        for reply in replies:
            if reply.number == number and isinstance(reply.body, Verdict):
                own = greedy(TRUTH, [*text, *block[: reply.body.num_accepted]], 1)[0]
                assert block[: reply.body.num_accepted] == greedy(TRUTH, text, reply.body.num_accepted)
                assert reply.body.next_token == own
                assert reply.body.num_accepted == len(block) or block[reply.body.num_accepted] != own
                text += [*block[: reply.body.num_accepted], own]


def test_an_equal_number_leaves_the_running_call_alone_and_moves_its_answers_to_the_new_stream() -> None:
    engine = draft()
    engine.receive("old", [propose(1, 1, TEXT, 3)])
    before = engine.step()
    engine.receive("new", [propose(1, 1, TEXT, 3)])
    after = [answer for _ in range(3) for answer in engine.step()]
    assert [stream for stream, _ in before + after] == ["old", "new", "new", "new"]
    drafted = [token for _, reply in after for token in reply.body.tokens]  # type: ignore[union-attr]
    assert drafted == greedy(TRUTH, TEXT, 3)
    verifying = target()
    verifying.receive("s", [verify(1, 1, TEXT), verify(1, 1, TEXT)])
    (answer,) = steps(verifying)
    assert isinstance(answer.body, Verdict)
