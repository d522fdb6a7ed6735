"""Steps in fixed shapes give the logits of ragged ones, whatever the buffers, the padding and the pool hold.

Recordings are played by calling the work again on the same buffers, as a CUDA graph would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tandem.config import load_config
from tandem.core.plan import SequencePlan, StepPlan
from tandem.errors import ConfigError
from tandem.model import cuda_graphs, fixed_shapes, loading
from tandem.model.cuda_graphs import WARM_UPS, CudaGraphs
from tandem.model.fixed_shapes import Shape, shape_of, why_not
from tandem.model.kv_pool import KVPool
from tandem.model.load import load_model
from tandem.model.runner import Runner

MakeFolder = Callable[..., Path]
BLOCK_SIZE, NUM_BLOCKS = 4, 64
LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, one KV head per head": ("llama", {"num_key_value_heads": 4}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "qwen2, some windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "layer_types": LAYERS}),
    "qwen3": ("qwen3", {}),
}


@pytest.fixture(autouse=True)
def writable_pools() -> Iterator[None]:
    """A runner's tensors are made in inference mode, and may be written in it alone."""
    with torch.inference_mode():
        yield


@pytest.fixture
def small_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short sequences come to lie on both sides of every border."""
    monkeypatch.setattr(fixed_shapes, "SEQUENCES", (1, 2, 4))
    monkeypatch.setattr(fixed_shapes, "ROWS", (1, 2, 4))
    monkeypatch.setattr(fixed_shapes, "CONTEXTS", (8, 10, 24))  # one of them no multiple of a block
    monkeypatch.setattr(fixed_shapes, "MAX_ROWS", 16)


class Twins:
    """The same model behind a runner of fixed shapes and behind a ragged one."""

    def __init__(self, folder: Path) -> None:
        model = load_model(folder, torch.float64, "cpu")
        self.num_recorded = 0
        self.shapes: list[Shape | None] = []
        self.fixed = Runner(model, NUM_BLOCKS, BLOCK_SIZE, self._record)
        self.ragged = Runner(model, NUM_BLOCKS, BLOCK_SIZE)

    def step(self, plan: StepPlan) -> Tensor:
        self.shapes.append(shape_of(plan))
        self._poison()
        logits = self.fixed.forward(plan)
        torch.testing.assert_close(logits, self.ragged.forward(plan), rtol=0, atol=1e-9)
        return logits

    @property
    def layers(self) -> dict[int, tuple[Tensor, Tensor]]:
        return self.fixed._pool._layers

    def _record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Tensors that are made without saying where come to lie on no device: on a GPU they would on the wrong one."""

        def run() -> None:
            with torch.device("meta"):
                work()

        self.num_recorded += 1
        run()
        return run

    def _poison(self) -> None:
        """What an earlier step left behind: ids that no index allows, and NaN."""
        fixed = self.fixed._fixed
        assert fixed is not None
        fixed._ids.fill_(1 << 40)
        fixed._logits.fill_(torch.nan)
        for pools in self.layers.values():
            for pool in pools:
                pool[-1] = torch.nan


@pytest.fixture
def twins(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch) -> Twins:
    return poisoned_twins(make_folder("llama"), monkeypatch)


def poisoned_twins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Twins:
    """Memory that nobody has written yet is NaN."""

    def full_of_nan(pool: KVPool, rows: Tensor) -> Tensor:
        return rows.new_full((pool.num_slots, rows.shape[0], rows.shape[2]), torch.nan)

    monkeypatch.setattr(KVPool, "_empty_like", full_of_nan)
    return Twins(folder)


def tokens_of(seed: int, length: int) -> tuple[int, ...]:
    return tuple(random.Random(seed).randrange(3, 40) for _ in range(length))


def random_plans(seed: int, num_steps: int) -> Iterator[StepPlan]:
    """Steps of up to 5 sequences, each fed up to 5 tokens from a position that is cached, in blocks anywhere."""
    choice, blocks = random.Random(seed), list(range(NUM_BLOCKS))
    choice.shuffle(blocks)
    owned = [tuple(blocks[8 * i : 8 * i + 8]) for i in range(5)]
    lengths = [0] * 5
    for step in range(num_steps):
        rows = []
        for index in choice.sample(range(5), choice.randint(1, 5)):
            start = choice.randint(max(0, lengths[index] - 4), lengths[index]) if lengths[index] < 26 else 0
            new = tokens_of(1000 * step + index, choice.choice([1, 1, 1, 2, 2, 3, 4, 5]))
            lengths[index] = start + len(new)
            rows.append(SequencePlan(new, start, owned[index], choice.randint(0, len(new))))
        yield StepPlan(tuple(rows))


@pytest.mark.usefixtures("small_shapes")
@pytest.mark.parametrize("case", CASES)
def test_random_steps_equal_ragged_ones(make_folder: MakeFolder, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Family: what padding, stale buffers or memory of others adds to a row. NaN there would show in any product."""
    architecture, overrides = CASES[case]
    twins = poisoned_twins(make_folder(architecture, **overrides), monkeypatch)
    for plan in random_plans(1, 120):
        twins.step(plan)
    used = {shape for shape in twins.shapes if shape}
    assert {shape.context for shape in used} == {8, 10, 24}
    assert len(used) > 12
    assert None in twins.shapes
    assert twins.num_recorded == len(used)


def test_every_slot_of_a_block_and_both_sides_of_a_border(twins: Twins) -> None:
    """A sequence grows token by token over the border at 128; beside it stands a short one."""
    long, short = tokens_of(2, 131), tokens_of(3, 5)
    far, near = tuple(range(40, 7, -1)), (3, 1)
    twins.step(StepPlan((SequencePlan(long[:120], 0, far, 1), SequencePlan(short, 0, near, 1))))
    for end in range(121, 132):
        rows = (SequencePlan(long[end - 1 : end], end - 1, far, 1), SequencePlan(short[4:], 4, near, 1))
        twins.step(StepPlan(rows))
    assert [shape.context for shape in twins.shapes[1:] if shape] == [128] * 8 + [256] * 3


def test_nothing_but_the_rows_own_slots_and_the_spare_one_is_written(twins: Twins) -> None:
    prompt = tokens_of(4, 9)
    twins.step(StepPlan((SequencePlan(prompt, 0, (5, 9, 2), 1),)))
    before = {index: [pool.clone() for pool in pools] for index, pools in twins.layers.items()}
    twins.step(StepPlan((SequencePlan(tokens_of(5, 3), 9, (5, 9, 2), 3), SequencePlan(tokens_of(6, 1), 0, (0,), 1))))
    written = torch.tensor([2 * BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 2, 2 * BLOCK_SIZE + 3, 0, NUM_BLOCKS * BLOCK_SIZE])
    kept = torch.ones(NUM_BLOCKS * BLOCK_SIZE + 1, dtype=torch.bool).index_fill(0, written, False)
    for index, pools in twins.layers.items():
        for old, new in zip(before[index], pools, strict=True):
            torch.testing.assert_close(new[kept], old[kept], rtol=0, atol=0, equal_nan=True)
            assert torch.isfinite(new[written]).all()


def test_one_request_s_nan_stays_its_own(twins: Twins) -> None:
    a, b = tokens_of(7, 4), tokens_of(8, 4)
    twins.step(StepPlan((SequencePlan(a, 0, (0,), 1), SequencePlan(b, 0, (1,), 1))))
    for runner in (twins.fixed, twins.ragged):
        runner._pool._layers[0][1][:BLOCK_SIZE] = torch.nan
    plan = StepPlan((SequencePlan(a[3:], 3, (0,), 1), SequencePlan(tokens_of(9, 2), 4, (1, 2), 2)))
    for _ in range(2):
        logits = twins.fixed.forward(plan)
        assert logits[0].isnan().all()
        torch.testing.assert_close(logits[1:], twins.ragged.forward(plan)[1:], rtol=0, atol=1e-9)


def test_blocks_too_few_for_the_tokens_are_refused(twins: Twins) -> None:
    with pytest.raises(ValueError, match="do not hold 5 tokens"):
        twins.fixed.forward(StepPlan((SequencePlan(tokens_of(10, 5), 0, (0,), 1),)))


def test_the_logits_of_one_step_outlive_the_next(twins: Twins) -> None:
    plan = StepPlan((SequencePlan(tokens_of(11, 2), 0, (0,), 2),))
    first = twins.step(plan)
    copy = first.clone()
    twins.step(StepPlan((SequencePlan(tokens_of(12, 2), 0, (0,), 2),)))
    assert torch.equal(first, copy)


@pytest.mark.parametrize(
    ("rows", "length", "expected"),
    [
        ((1,), 128, Shape(1, 1, 128)),
        ((1,), 129, Shape(1, 1, 256)),
        ((1, 3, 1), 20, Shape(4, 4, 128)),
        ((17,), 16_384, Shape(1, 17, 16_384)),
        ((18,), 18, None),
        ((1,), 16_385, None),
        ((1,) * 64, 2048, Shape(64, 1, 2048)),
        ((1,) * 64, 2049, None),
        ((1,) * 65, 10, None),
        ((4,) * 64, 10, Shape(64, 4, 128)),
        ((5,) + (1,) * 63, 10, None),
        ((), 0, None),
    ],
)
def test_the_smallest_shape_that_holds_a_step(rows: tuple[int, ...], length: int, expected: Shape | None) -> None:
    sequences = (SequencePlan((3,) * count, length - count, (), 1) for count in rows)
    assert shape_of(StepPlan(tuple(sequences))) == expected


def test_which_models_have_fixed_shapes(make_folder: MakeFolder) -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}
    folders = (make_folder("llama"), make_folder("gpt2"), make_folder("llama", rope_parameters=dynamic))
    reasons = [why_not(load_model(folder, torch.float32, "cpu").module) for folder in folders]
    assert not reasons[0]
    assert "lean decoder" in reasons[1]
    assert "rotary embedding" in reasons[2]


def test_others_and_ranks_stay_as_they_are_and_the_log_says_so(
    make_folder: MakeFolder, caplog: pytest.LogCaptureFixture
) -> None:
    for architecture, size in (("gpt2", 1), ("llama", 2)):
        model = load_model(make_folder(architecture), torch.float32, "cpu")
        assert loading._recorder(model, size) is None
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "ranks share it" in caplog.text


def test_the_fingerprint_tells_recorded_steps_apart(make_folder: MakeFolder) -> None:
    for architecture, number in (("llama", 2), ("gpt2", 1)):
        folder = make_folder(architecture)
        prints = {load_model(folder, torch.float32, "cpu", cuda_graphs=graphs).fingerprint for graphs in (False, True)}
        assert len(prints) == number


def test_graphs_without_a_cuda_device_are_refused() -> None:
    with pytest.raises(ConfigError, match="cuda_graphs: wants a CUDA device, and device is cpu"):
        load_config(None, {"model": {"cuda_graphs": True}})
    assert load_config(None, {"model": {"cuda_graphs": True, "device": "cuda:0"}}).model.cuda_graphs


class FakeCuda:
    """Notes where work runs: on the side stream, or in a recording."""

    def __init__(self) -> None:
        self.place = "main"
        self.pools: list[object] = []

    @contextmanager
    def at(self, place: str) -> Iterator[None]:
        before, self.place = self.place, place
        yield
        self.place = before

    @contextmanager
    def graph(self, graph: object, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        self.pools.append(pool)
        with self.at("recording"):
            yield


def test_work_warms_up_beside_and_is_recorded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stream:
        def wait_stream(self, other: Stream) -> None:
            waits.append((self, other))

    class Graph:
        def replay(self) -> None:
            ran.append("replayed")

    fake, main, ran, waits = FakeCuda(), Stream(), list[str](), list[tuple[Stream, Stream]]()
    names = {
        "device": lambda device: fake.at(fake.place),
        "stream": lambda stream: fake.at("side"),
        "graph": fake.graph,
        "Stream": Stream,
        "CUDAGraph": Graph,
        "current_stream": lambda: main,
        "graph_pool_handle": object,
    }
    for name, stand_in in names.items():
        monkeypatch.setattr(cuda_graphs.torch.cuda, name, stand_in)
    record = CudaGraphs("cuda")
    replays = [record(lambda: ran.append(fake.place)) for _ in range(2)]
    assert ran == [*["side"] * WARM_UPS, "recording"] * 2
    assert len(set(fake.pools)) == 1
    assert [main in pair for pair in waits] == [True] * 4
    replays[0]()
    assert ran[-1] == "replayed"
