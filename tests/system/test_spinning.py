"""Workers that share cores yield them: the setting stands before torch reads it, and a user's own comes first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASK = "import {0}, os, sys; print(os.environ.get('GOMP_SPINCOUNT'), 'torch' in sys.modules)"


@pytest.mark.parametrize("package", ["target_worker", "draft_worker"])
@pytest.mark.parametrize(
    ("wish", "expected"),
    [({}, "20000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, "None")],
)
def test_threads_spin_briefly(package: str, wish: dict[str, str], expected: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"} | wish
    command = [sys.executable, "-c", ASK.format(package)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected, "False"]
