"""One rank decides, all run the same step plans; a step takes every ready row. Families E65, E67."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from harness.generation import tiny_engine
from harness.scripted import BLOCK_SIZE, ScriptedModel, greedy, target_engine, whole_history
from harness.tiny import reference, tiny_model
from harness.worker_calls import verify

from tandem.core.blocks import BlockPool
from tandem.core.plan import StepPlan
from tandem.core.sessions import SessionTable
from tandem.core.types import Reply, Verdict
from tandem.model.engine import Engine, Forward
from tandem.model.runner import Runner
from target_worker.group import Group
from target_worker.verifier import Verifier

V = 6
TRUTH = whole_history(V, 1)


class ThreadFollower:
    """A rank in a thread of its own: it gets plans in order, and runs each."""

    def __init__(self, model: Forward) -> None:
        self._model = model
        self._plans: queue.SimpleQueue[StepPlan | None] = queue.SimpleQueue()
        self.ran: list[StepPlan] = []
        self.logits: list[torch.Tensor] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @contextmanager
    def step(self, plan: StepPlan) -> Iterator[None]:
        """The rank runs `plan` while the leader does."""
        self._plans.put(plan)
        yield

    def stop(self) -> None:
        self._plans.put(None)
        self._thread.join(10.0)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while (plan := self._plans.get()) is not None:
            self.logits.append(self._model.forward(plan))
            self.ran.append(plan)


class Recording:
    """Remembers what the leading rank ran."""

    def __init__(self, model: Forward) -> None:
        self._model = model
        self.plans: list[StepPlan] = []
        self.logits: list[torch.Tensor] = []

    def forward(self, plan: StepPlan) -> torch.Tensor:
        self.plans.append(plan)
        self.logits.append(self._model.forward(plan))
        return self.logits[-1]


def run(engine: Engine) -> list[Reply]:
    replies = []
    while engine.busy:
        replies += [reply for _, reply in engine.step()]
    return replies


def test_both_ranks_see_the_same_plans_in_order_and_compute_the_same() -> None:
    """Prompts of several lengths, in chunks, rejections and roll-backs: rank 1 never decides anything."""
    model = tiny_model("target")
    leader, follower = Recording(Runner(model, 64, 8)), ThreadFollower(Runner(model, 64, 8))
    verifier = Verifier(256, 256, 256, model.context_length)
    table = SessionTable(BlockPool(64, 8))
    engine = Engine(Group(leader, follower), table, verifier.open_job, max_step_tokens=16, clock_ns=lambda: 0)
    texts = [list(b"hello"), list(b"a rather longer prompt than that"), list(b"x")]
    for number in range(1, 9):
        for session, text in enumerate(texts):
            block = [*reference(tuple(text), 2), (number * 37) % 256]
            engine.receive("s", [verify(session, number, text, block)])
        for reply in run(engine):
            assert isinstance(reply.body, Verdict)
            text = texts[int.from_bytes(reply.session_id, "big")]
            text += reference(tuple(text), reply.body.num_accepted + 1)
    follower.stop()
    assert len(leader.plans) > 8 and follower.ran == leader.plans
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(leader.logits, follower.logits, strict=True))


def test_the_text_of_two_ranks_is_that_of_one() -> None:
    leader, follower = ScriptedModel(TRUTH, 64), ThreadFollower(ScriptedModel(TRUTH, 64))
    table = SessionTable(BlockPool(64, BLOCK_SIZE))
    engine = Engine(Group(leader, follower), table, Verifier(V, V, V, 512).open_job, 512, lambda: 0)
    text = [1, 2]
    for number in range(1, 20):
        engine.receive("s", [verify(1, number, text, [0, 0])])
        (reply,) = run(engine)
        assert isinstance(reply.body, Verdict)
        text += [*[0, 0][: reply.body.num_accepted], reply.body.next_token]
    follower.stop()
    assert text[2:] == greedy(TRUTH, [1, 2], len(text) - 2)
    assert follower.ran == leader.plans


def test_16_ready_blocks_of_16_sessions_make_one_forward_pass() -> None:
    engine = tiny_engine("target", "target", clock_ns=lambda: 0)
    texts = [list(b"prompt %d" % index) for index in range(16)]
    engine.receive("s", [verify(index, 1, text) for index, text in enumerate(texts)])
    first = run(engine)
    runner = engine._model._model  # type: ignore[attr-defined]
    before = runner.num_forwards
    engine.receive("s", [verify(index, 2, text, reference(tuple(text), 3)) for index, text in enumerate(texts)])
    replies = [reply for _, reply in engine.step()]
    assert runner.num_forwards == before + 1
    assert len(first) == len(replies) == 16 and not engine.busy
    for reply, text in zip(replies, texts, strict=True):
        assert reply.body == Verdict(3, reference(tuple(text), 4)[3], num_reused=reply.body.num_reused)  # type: ignore


def test_a_step_takes_every_ready_row_and_pads_none() -> None:
    model = ScriptedModel(TRUTH, 64)
    engine = target_engine(model, V, lambda: 0, num_blocks=64, max_step_tokens=40)
    engine.receive("s", [verify(0, 1, [1] * 50), verify(1, 1, [2, 3], [1]), verify(2, 1, [4])])
    engine.step()
    rows = [len(sequence.tokens) for sequence in model.plans[0].sequences]
    assert sorted(rows) == [1, 3, 36], "short ones whole, the prompt fills up the step"
    engine.receive("s", [verify(3, 1, [5, 5])])
    engine.step()
    assert [len(sequence.tokens) for sequence in model.plans[1].sequences] == [14, 2], "new work joins at the next step"
