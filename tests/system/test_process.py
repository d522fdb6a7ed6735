"""What workers ask of their processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import {0}, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"
FAULTS = """
import resource, torch
from tandem.core.distributions import truncate
from tandem.core.types import Sampling
from tandem.process import keep_freed_memory
keep_freed_memory()
scores = torch.randn(6, 50_000, dtype=torch.float64)
def num_faults():
    for _ in range(30):
        truncate(scores, Sampling(top_p=0.9, min_p=0.01))
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(-num_faults() + num_faults())
"""


@pytest.mark.parametrize("package", ["target_worker", "draft_worker"])
@pytest.mark.parametrize(
    ("wish", "expected"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_spin_briefly(package: str, wish: dict[str, str], expected: str) -> None:
    """The setting stands before torch reads it, and a user's own comes first."""
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | wish
    command = [sys.executable, "-c", ASK.format(package)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "False"]


def test_what_a_step_frees_serves_the_next() -> None:
    """The kernel's pages are asked for once: counted while rows of logits become distributions."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200  # as glibc comes, it is some thousands
