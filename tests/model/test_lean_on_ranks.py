"""The lean decoder on ranks that share a model computes what transformers computes on one."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from test_lean_decoder import CASES, TOLERANCES, randomised, run

MakeFolder = Callable[..., Path]
# Two ranks cannot share one KV head; the last one's vocabulary they can, but not evenly.
SHARED = {name: case for name, case in CASES.items() if name != "llama, one KV head"}
SHARED |= {"llama, odd vocabulary": ("llama", {"vocab_size": 261}), "tied": ("llama", {"tie_word_embeddings": True})}


def _rank(rank: int, store: Path, folders: dict[str, Path], dtype: torch.dtype, result: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    logits = {name: run(folder, dtype, tensor_parallel_size=2) for name, folder in folders.items()}
    if rank == 0:
        torch.save(logits, result)
    dist.barrier()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_logits_equal_those_of_transformers_on_one(make_folder: MakeFolder, tmp_path: Path, dtype: torch.dtype) -> None:
    folders: dict[str, Path] = {}
    for index, (name, (architecture, overrides)) in enumerate(SHARED.items()):
        (tmp_path / str(index)).mkdir()
        folders[name] = randomised(make_folder(architecture, **overrides), tmp_path / str(index))
    options: Any = (tmp_path / "store", folders, dtype, tmp_path / "logits")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=_rank, args=(rank, *options)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    assert [process.exitcode for process in ranks] == [0, 0]
    shared = torch.load(tmp_path / "logits")
    for name, folder in folders.items():
        for own, theirs in zip(shared[name], run(folder, dtype, lean=False), strict=True):
            size = theirs.abs().max() if len(theirs) else torch.tensor(1.0)
            torch.testing.assert_close(own / size, theirs / size, rtol=0, atol=TOLERANCES[dtype], msg=name)
