"""A step waits at its border for the sessions of the last one, where the engine says so; by a fake clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable

import pytest
from harness import scripted
from harness.scripted import ScriptedModel, whole_history

from tandem.core.plan import StepPlan
from tandem.core.prefix import TokenList, state_prefix
from tandem.core.types import Block, Call, Cancel, Item, Release, Reply, Rule, Sampling, Verdict, Verify
from tandem.model.device import DeviceThread
from tandem.model.engine import Answer, Engine

V = 6
STEP_NS, AWAY_NS = 1_000_000_000, 100_000_000


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


class Timed(ScriptedModel):
    """A forward pass takes a second."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(whole_history(V, 1))
        self._clock = clock

    def forward(self, plan: StepPlan) -> object:  # type: ignore[override]
        self._clock.now_ns += STEP_NS
        return super().forward(plan)


class Sessions:
    """Sessions of one engine that come back a tenth of a second after each answer, until told otherwise."""

    def __init__(self, num: int, max_step_tokens: int = 512) -> None:
        self.clock = Clock()
        self.engine: Engine = scripted.target_engine(Timed(self.clock), V, self.clock, max_step_tokens=max_step_tokens)
        self.texts = {index: [index % V, 1, 2] for index in range(num)}
        self.numbers = dict.fromkeys(range(num), 0)
        for _ in range(8):
            self.call(*self.texts)
            self.step()

    def call(self, *indices: int, stream: Hashable = "s", block: tuple[int, ...] = ()) -> None:
        for index in indices:
            self.numbers[index] += 1
            number, prefix = self.numbers[index], state_prefix(TokenList(self.texts[index]), (), 3, 0)
            call = Call(bytes([index]) * 16, number, number, Rule.GREEDY, 500, sampling=Sampling(temperature=0.0))
            self.engine.receive(stream, [Verify(call, prefix, Block(block))], self.clock.now_ns)

    def step(self) -> None:
        for _, reply in self.engine.step():
            assert isinstance(reply.body, Verdict)
            self.texts[reply.session_id[0]].append(reply.body.next_token)
        self.clock.now_ns += AWAY_NS

    def give(self, *items: Item) -> None:
        self.engine.receive("s", items)


def test_the_first_back_waits_for_the_other_of_its_step() -> None:
    sessions = Sessions(2)
    sessions.clock.now_ns -= AWAY_NS // 2
    assert sessions.engine.wait_s == 0.0  # nobody is ready
    sessions.call(0)
    assert 0.0 < sessions.engine.wait_s <= 0.1
    sessions.call(1)
    assert sessions.engine.wait_s == 0.0


def test_a_single_session_never_waits() -> None:
    sessions = Sessions(1)
    for early_ns in (AWAY_NS, AWAY_NS // 2, 0):
        sessions.clock.now_ns -= early_ns
        sessions.call(0)
        assert sessions.engine.wait_s == 0.0
        sessions.step()


LEAVING: dict[str, Callable[[Sessions], None]] = {
    "released": lambda sessions: sessions.give(Release(bytes([1]) * 16)),
    "its stream is gone": lambda sessions: sessions.engine.close_stream("other"),
    "late": lambda sessions: setattr(sessions.clock, "now_ns", sessions.clock.now_ns + AWAY_NS),
}


@pytest.mark.parametrize("how", LEAVING)
def test_a_session_that_left_is_not_waited_for(how: str) -> None:
    sessions = Sessions(2)
    sessions.call(0)
    sessions.call(1, stream="other")
    sessions.step()
    sessions.clock.now_ns -= AWAY_NS // 2
    sessions.call(0)
    assert sessions.engine.wait_s > 0.0
    LEAVING[how](sessions)
    assert sessions.engine.wait_s == 0.0


def test_neither_a_refusal_nor_a_full_step_waits() -> None:
    sessions = Sessions(2, max_step_tokens=8)
    sessions.clock.now_ns -= AWAY_NS // 2
    sessions.call(0)
    assert sessions.engine.wait_s > 0.0
    sessions.give(Cancel(bytes([0]) * 16, sessions.numbers[0]))
    sessions.call(0)
    assert sessions.engine.wait_s == 0.0  # the cancelled call is to be answered
    sessions.engine.step()
    sessions = Sessions(2, max_step_tokens=8)
    sessions.clock.now_ns -= AWAY_NS // 2
    sessions.call(0, block=(0,) * 7)
    assert sessions.engine.wait_s == 0.0


class Waiting:
    """An engine that has work and waits until three items have come."""

    def __init__(self) -> None:
        self.items: list[object] = []
        self.first_came = threading.Event()
        self.stepped_with: list[int] = []

    clock_ns = staticmethod(lambda: 0)
    work = type("Work", (), {"num_submitted": 0})()

    @property
    def busy(self) -> bool:
        return bool(self.items)

    @property
    def wait_s(self) -> float:
        return 60.0 if 0 < len(self.items) < 3 else 0.0

    def receive(self, stream: Hashable, items: Iterable[object], came_ns: int) -> None:
        self.items += items
        self.first_came.set()

    def step(self) -> list[Answer]:
        self.stepped_with.append(len(self.items))
        self.items.clear()
        return [("s", Reply(b"", 1, Verdict(0, 0)))]


def test_what_comes_while_the_device_thread_waits_is_in_the_step() -> None:
    engine, answered = Waiting(), threading.Event()
    device = DeviceThread(engine, lambda answers: answered.set())  # type: ignore[arg-type]
    device.start()
    device.submit("s", [Release(b"1")])
    assert engine.first_came.wait(30.0) and not answered.is_set()
    device.submit("s", [Release(b"2")])
    device.submit("s", [Release(b"3")])
    assert answered.wait(30.0)
    device.stop()
    assert engine.stepped_with[0] == 3
