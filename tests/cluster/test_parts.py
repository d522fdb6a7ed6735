"""The parts of a group that need no Ray: the wire, the line between ranks, the watchdog, what is refused at start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

import pytest
import torch
from harness.tiny import tiny_folder, tiny_model
from hypothesis import given
from hypothesis import strategies as st

from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ConfigError
from target_worker import wire
from target_worker.channel import FRAME, interface_of, meeting_point
from target_worker.group import Group
from target_worker.keeper import descendants, keep
from target_worker.line import Line, follow
from target_worker.rank import check_degree
from target_worker.room import bundles, shortage
from target_worker.watchdog import Watchdog

NUMBERS = st.lists(st.integers(0, 2**40), max_size=40).map(tuple)
SEQUENCES = st.builds(SequencePlan, NUMBERS, st.integers(0, 2**31), NUMBERS, st.integers(0, 17))
PLAN = StepPlan((SequencePlan((1, 2), 0, (0,), 1),))


@given(st.builds(StepPlan, st.lists(SEQUENCES, max_size=5).map(tuple)))
def test_a_plan_arrives_as_it_was(plan: StepPlan) -> None:
    assert wire.decode(wire.encode(plan)) == plan


def test_the_words_that_are_no_plan() -> None:
    assert wire.decode(wire.IDLE) == StepPlan(())
    assert wire.decode(wire.STOP) is None


class Recorded:
    """A channel whose other end is a list, or breaks."""

    def __init__(self, fails: bool = False) -> None:
        self.sent: list[list[int]] = []
        self.confirmed = threading.Event()
        self._fails = fails

    def send(self, words: Sequence[int]) -> None:
        self.sent.append(list(words))

    def receive(self) -> list[int]:
        return self.sent.pop(0)

    def confirm(self) -> None:
        if self._fails:
            raise RuntimeError("connection closed by peer")
        self.confirmed.set()


class Model:
    def __init__(self, run: Callable[[], object] = lambda: None) -> None:
        self.plans: list[StepPlan] = []
        self._run = run

    def forward(self, plan: StepPlan) -> torch.Tensor:
        self.plans.append(plan)
        self._run()
        return torch.zeros(1)


def lost() -> tuple[list[str], threading.Event, Callable[[str], None]]:
    reasons, known = [], threading.Event()

    def on_loss(reason: str) -> None:
        reasons.append(reason)
        known.set()
        threading.Event().wait()  # as the real one, it does not return

    return reasons, known, on_loss


def test_the_others_get_the_plan_before_rank_0_runs_it() -> None:
    channel = Recorded()
    line = Line(channel, 60.0, lost()[2])
    model = Model(lambda: channel.sent[-1] == wire.encode(PLAN) or pytest.fail("not sent"))
    Group(model, line).forward(PLAN)
    line.close()
    assert model.plans == [PLAN]
    follower = Model()
    follow(channel, follower, Watchdog(60.0, pytest.fail))
    assert follower.plans == [PLAN]


def test_silence_is_filled_with_confirmed_heartbeats() -> None:
    channel = Recorded()
    line = Line(channel, 0.3, pytest.fail)
    assert channel.confirmed.wait(5.0)
    line.close()
    assert channel.sent[0] == list(wire.IDLE)
    assert channel.sent[-1] == list(wire.STOP)


def test_a_rank_lost_while_idle_is_noticed() -> None:
    reasons, known, on_loss = lost()
    Line(Recorded(fails=True), 0.3, on_loss)
    assert known.wait(5.0)
    assert reasons[0] == "a step failed: connection closed by peer"


def test_a_step_that_hangs_is_noticed() -> None:
    reasons, known, on_loss = lost()
    line = Line(Recorded(), 0.2, on_loss)
    with line.step(PLAN):
        assert known.wait(5.0)
    assert reasons == ["a step took more than 0.2 s"]
    line.close()


@pytest.mark.parametrize(("size", "heads"), [(3, "4 attention heads"), (4, "2 key/value heads")])
def test_heads_that_cannot_be_shared_are_refused(size: int, heads: str) -> None:
    with pytest.raises(ConfigError, match=f"{size} ranks cannot share {heads}"):
        check_degree(tiny_folder("target"), size)
    check_degree(tiny_folder("target"), 2)


def test_a_shortage_is_named() -> None:
    wanted = bundles(4, 1.0, True, "10.0.0.1")
    assert wanted[0] == {"CPU": 1.0, "GPU": 1.0, "node:10.0.0.1": 0.001}
    said = shortage(wanted, [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 8.0, "GPU": 2.0}], {"CPU": 16.0, "GPU": 3.0})
    assert said == "4 ranks need 4 CPU (16 there, 16 free) and 4 GPU (3 there, 3 free) on 2 nodes; missing: 1 GPU"
    crowded = shortage(wanted, [{"CPU": 8.0, "GPU": 4.0}], {"CPU": 1.0, "GPU": 4.0})
    assert crowded.endswith("others hold what is not free, or no node has a whole rank's share")


def test_a_keeper_kills_what_was_there_when_it_began() -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    with sleeping:
        assert descendants(sleeping.pid) == []
        keeper = keep(os.getpid())
        assert sleeping.poll() is None
        keeper.communicate(timeout=10)
        assert sleeping.wait(10) == -9


def test_the_interface_of_an_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.77") == ""


ONE_RANK = """
import sys
from tandem.config import Config
from target_worker.__main__ import load
load(Config(model={"target": sys.argv[1], "dtype": "float64"}, target={"kv_tokens": 64}))
import torch
assert "ray" not in sys.modules and not torch.distributed.is_initialized()
"""


def test_one_rank_needs_no_ray() -> None:
    subprocess.run([sys.executable, "-c", ONE_RANK, str(tiny_folder("target"))], check=True, timeout=60)


RANKS = """
import sys
from pathlib import Path
import torch
from tandem.model.load import load_model
from tandem.core.plan import SequencePlan, StepPlan
from target_worker import wire
from target_worker.channel import Place, go_to, join, leave, smallest
rank, port = int(sys.argv[1]), int(sys.argv[2])
store = go_to(Place(rank, 2, 2, "127.0.0.1", port))
channel = join(Place(rank, 2, 2, "127.0.0.1", port), store, "cpu", "127.0.0.1", 20.0)
assert smallest(7 - rank) == 6
plans = [StepPlan((SequencePlan(tuple(range(count)), 3, (1, 2), 1),)) for count in (1, 504, 505, 506, 5000)]
for plan in plans:
    if rank == 0:
        channel.send(wire.encode(plan))
    else:
        assert wire.decode(channel.receive()) == plan
    channel.confirm()
model = load_model(Path(sys.argv[3]), torch.float64, "cpu", tensor_parallel_size=2)
assert model.kv_bytes_per_token == int(sys.argv[4]) // 2
leave()
"""


def test_two_processes_share_a_model_and_plans_of_any_length() -> None:
    store = meeting_point("127.0.0.1", 2)
    options = [str(store.port), str(tiny_folder("target")), str(tiny_model("target").kv_bytes_per_token)]
    ranks = [subprocess.Popen([sys.executable, "-c", RANKS, str(rank), *options]) for rank in range(2)]
    assert [rank.wait(60) for rank in ranks] == [0, 0]
    assert FRAME == 512  # the lengths above stand around it
