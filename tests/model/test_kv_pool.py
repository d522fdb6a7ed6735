from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tandem.model import kv_pool
from tandem.model.kv_pool import MAX_DEFAULT_KV_TOKENS, KVPool, default_kv_tokens


def test_rows_land_in_their_slots_and_others_stay() -> None:
    pool = KVPool(8)
    first = torch.arange(12.0).reshape(2, 3, 2)  # heads, rows, head_dim
    pool.write(0, torch.tensor([5, 0, 3]), first, -first)
    keys, values = pool.write(0, torch.tensor([0]), first[:, :1] + 100, first[:, :1])
    assert torch.equal(keys[[5, 3]], first[:, [0, 2]].transpose(0, 1))
    assert torch.equal(values[3], -first[:, 2])
    assert torch.equal(keys[0], first[:, 0] + 100)


def test_keys_and_values_may_differ_in_width() -> None:
    pool = KVPool(4)
    assert pool.bytes_per_token == 0
    pool.write(0, torch.tensor([1]), torch.ones(2, 1, 6), torch.ones(2, 1, 4))
    pool.write(1, torch.tensor([1]), torch.ones(2, 1, 6), torch.ones(2, 1, 4))
    assert pool.bytes_per_token == 2 * 2 * (6 + 4) * 4
    assert pool.layers == {0, 1}


def test_a_slot_outside_the_pool_is_an_error() -> None:
    with pytest.raises(IndexError):
        KVPool(4).write(0, torch.tensor([4]), torch.ones(1, 1, 2), torch.ones(1, 1, 2))


def test_default_budget_is_a_share_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_pool, "_free_bytes", lambda _: 4_000_000)
    assert default_kv_tokens(1000) == 1000
    assert default_kv_tokens(1) == MAX_DEFAULT_KV_TOKENS
    assert default_kv_tokens(1 << 40) == 1


def test_a_container_limit_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert kv_pool._free_in_container(tmp_path) == 600
    (tmp_path / "memory.max").write_text("max\n")
    assert kv_pool._free_in_container(tmp_path) > 1 << 60
    assert default_kv_tokens(1 << 12) > 0
