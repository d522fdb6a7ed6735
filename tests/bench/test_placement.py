"""Who gets which cores."""

from __future__ import annotations

import os

import pytest

from tandem.bench.placement import place, take_cores
from tandem.bench.rows import Setup
from tandem.errors import ConfigError


def test_shared_cores_are_for_both() -> None:
    found = place(Setup.SHARED, (0, 1), 0)
    assert (found.target_cores, found.draft_cores) == ((0, 1), (0, 1))
    assert (found.target_threads, found.draft_threads, found.num_cores) == (2, 2, 2)
    assert place(Setup.SHARED, (0, 1), 1).draft_threads == 1


@pytest.mark.parametrize("num_cores", range(2, 20))
def test_two_devices_share_no_core_and_leave_none_idle(num_cores: int) -> None:
    cores = tuple(range(3, 3 + num_cores))
    found = place(Setup.TWO_DEVICES, cores, 0)
    assert (*found.target_cores, *found.draft_cores) == cores
    assert found.target_threads >= found.draft_threads >= 1
    assert found.num_cores == num_cores


def test_one_core_is_no_two_devices() -> None:
    with pytest.raises(ConfigError, match="two devices"):
        place(Setup.TWO_DEVICES, (0,), 0)


def test_no_more_cores_are_taken_than_there_are() -> None:
    there = os.sched_getaffinity(0)
    assert take_cores(0) == tuple(sorted(there)) and os.sched_getaffinity(0) == there
    with pytest.raises(ConfigError, match="cores: "):
        take_cores(len(there) + 1)
