"""The parts of a group that need no Ray: plans on their way, heartbeats, the watchdog, what is refused at start."""

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
from tandem.model.pretrained import read_model
from target_worker.broadcast import PlanBroadcast, run_plans
from target_worker.group import Group
from target_worker.plan_codec import HEARTBEAT, decode, encode
from target_worker.process_group import FRAME, interface_of, open_store
from target_worker.rank import check_degree, shard_bytes
from target_worker.reaper import descendants, start_reaper
from target_worker.resources import GIB, bundles, shortage
from target_worker.watchdog import Watchdog

NUMBERS = st.lists(st.integers(0, 2**40), max_size=40).map(tuple)
SEQUENCES = st.builds(SequencePlan, NUMBERS, st.integers(0, 2**31), NUMBERS, st.integers(0, 17))
PLAN = StepPlan((SequencePlan((1, 2), 0, (0,), 1),))
WAIT_S = 60.0  # for what comes at once where the machine is idle


@given(st.builds(StepPlan, st.lists(SEQUENCES, max_size=5).map(tuple)))
def test_a_plan_arrives_as_it_was(plan: StepPlan) -> None:
    assert decode(encode(plan)) == plan


class Recorded:
    """A channel whose other end is a list, or breaks."""

    def __init__(self, fails: bool = False) -> None:
        self.sent: list[list[int]] = []
        self.met = threading.Event()
        self._fails = fails

    def send(self, numbers: Sequence[int]) -> None:
        self.sent.append(list(numbers))

    def receive(self) -> list[int]:
        if not self.sent:
            raise RuntimeError("connection closed by peer")
        return self.sent.pop(0)

    def barrier(self) -> None:
        if self._fails:
            raise RuntimeError("connection closed by peer")
        self.met.set()


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
    broadcast = PlanBroadcast(channel, 600.0, lost()[2])
    model = Model(lambda: channel.sent[-1] == encode(PLAN) or pytest.fail("not sent"))
    Group(model, broadcast).forward(PLAN)
    broadcast.close()
    assert model.plans == [PLAN]
    other = Model()
    with pytest.raises(RuntimeError, match="closed by peer"):
        run_plans(channel, other, Watchdog(600.0, pytest.fail))
    assert other.plans == [PLAN]


def test_silence_is_filled_with_heartbeats_that_all_ranks_meet_in() -> None:
    channel = Recorded()
    broadcast = PlanBroadcast(channel, 3.0, pytest.fail)
    assert channel.met.wait(WAIT_S)
    broadcast.close()
    assert channel.sent[0] == encode(HEARTBEAT)
    channel.met.clear()
    model = Model()
    with pytest.raises(RuntimeError, match="closed by peer"):
        run_plans(channel, model, Watchdog(600.0, pytest.fail))
    assert channel.met.is_set() and not model.plans


def test_a_rank_lost_while_idle_is_noticed() -> None:
    reasons, known, on_loss = lost()
    PlanBroadcast(Recorded(fails=True), 3.0, on_loss)
    assert known.wait(WAIT_S)
    assert reasons[0] == "a step failed: connection closed by peer"


def test_a_step_that_hangs_is_noticed() -> None:
    reasons, known, on_loss = lost()
    broadcast = PlanBroadcast(Recorded(), 0.2, on_loss)
    with broadcast.step(PLAN):
        assert known.wait(WAIT_S)
    assert reasons == ["a step took more than 0.2 s"]
    broadcast.close()


@pytest.mark.parametrize(("size", "heads"), [(3, "4 attention heads"), (4, "2 key/value heads")])
def test_heads_that_cannot_be_shared_are_refused(size: int, heads: str) -> None:
    with pytest.raises(ConfigError, match=f"{size} ranks cannot share {heads}"):
        check_degree(tiny_folder("target"), size)
    check_degree(tiny_folder("target"), 2)


def test_a_shortage_is_named() -> None:
    wanted = bundles(4, {"CPU": 1.0, "GPU": 1.0}, "10.0.0.1")
    assert wanted[0] == {"CPU": 1.0, "GPU": 1.0, "node:10.0.0.1": 0.001}
    assert wanted[1:] == [{"CPU": 1.0, "GPU": 1.0}] * 3
    here = {"CPU": 8.0, "GPU": 1.0, "node:10.0.0.1": 1.0}
    said = shortage(wanted, [here, {"CPU": 8.0, "GPU": 2.0}], {"CPU": 16.0, "GPU": 3.0})
    assert said == "4 ranks need 4 CPU (16 there, 16 free) and 4 GPU (3 there, 3 free) on 2 nodes; missing: 1 GPU"
    crowded = shortage(wanted, [{**here, "GPU": 4.0}], {"CPU": 1.0, "GPU": 4.0})
    assert crowded.endswith("on 1 node; others hold what is not free, or no node has a whole rank's share")
    elsewhere = shortage(wanted, [{"CPU": 8.0, "GPU": 4.0}], {"CPU": 8.0, "GPU": 4.0})
    assert elsewhere.endswith("missing: a node on this machine, 10.0.0.1")
    large = shortage([{"CPU": 1.0, "memory": 1.5 * GIB}] * 2, [{"CPU": 1.0, "memory": GIB}], {"memory": GIB / 2})
    assert "2 CPU (1 there, 0 free) and 3.00 GiB of memory (1.00 there, 0.50 free) on 1 node" in large
    assert large.endswith("missing: 1 CPU, 2.00 GiB of memory")


def test_a_shard_takes_its_part_of_the_weights() -> None:
    weights = sum(parameter.numel() for parameter in read_model(tiny_folder("target")).parameters())
    assert shard_bytes(tiny_folder("target"), "float64", 2) == 8 * weights // 2
    assert shard_bytes(tiny_folder("target"), "bfloat16", 1) == 2 * weights


def test_a_reaper_kills_what_was_there_when_it_began() -> None:
    sleeping = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with sleeping:
        assert descendants(sleeping.pid) == []
        reaper = start_reaper(os.getpid())
        assert sleeping.poll() is None
        reaper.communicate(timeout=WAIT_S)
        assert sleeping.wait(WAIT_S) == -9


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
    subprocess.run([sys.executable, "-c", ONE_RANK, str(tiny_folder("target"))], check=True, timeout=100)


RANKS = """
import os, sys
from pathlib import Path
import torch
from tandem.model.load import load_model
from tandem.core.plan import SequencePlan, StepPlan
from target_worker.plan_codec import decode, encode
from target_worker.process_group import Placement, all_reduce_min, connect_store, join_process_group
rank, port = int(sys.argv[1]), int(sys.argv[2])
placement = Placement(rank, 2, 2, "127.0.0.1", None, "127.0.0.1", port)
channel = join_process_group(placement, connect_store(placement), 100.0)
assert all_reduce_min(7 - rank) == 6
plans = [StepPlan((SequencePlan(tuple(range(count)), 3, (1, 2), 1),)) for count in (1, 504, 505, 506, 5000)]
for plan in plans:
    if rank == 0:
        channel.send(encode(plan))
    else:
        assert decode(channel.receive()) == plan
    channel.barrier()
model = load_model(Path(sys.argv[3]), torch.float64, "cpu", tensor_parallel_size=2)
assert model.kv_bytes_per_token == int(sys.argv[4]) // 2
embedding = model.module.get_input_embeddings().weight
assert 2 * len(embedding.to_local()) == len(embedding)
channel.barrier()
os._exit(0)
"""


def test_two_processes_share_a_model_and_plans_of_any_length() -> None:
    store = open_store("127.0.0.1", 2)
    options = [str(store.port), str(tiny_folder("target")), str(tiny_model("target").kv_bytes_per_token)]
    ranks = [subprocess.Popen([sys.executable, "-c", RANKS, str(rank), *options]) for rank in range(2)]
    assert [rank.wait(100) for rank in ranks] == [0, 0]
    assert FRAME == 512  # the lengths above stand around it
