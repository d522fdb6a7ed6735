"""Faults of every kind while requests run: nothing repeated, nothing lost, nothing left behind.

way (harness)   a TCP way that can be held, slowed, cut and healed
cluster         coordinators and workers in this process, a way between any two, and what can happen to them
lockstep        targets that wait for the client, so that a request is struck where it is to be struck
history         what the client saw, what the workers accepted, what remained
invariants      I1 to I5 over a history
schedule        random faults from a seed
campaign        many schedules, and the table of what they came to
"""

import sys
from pathlib import Path

# `python -m tests.faults.campaign` finds this package from the root, and must find `faults` and `harness` as tests do.
if (_TESTS := str(Path(__file__).resolve().parents[1])) not in sys.path:
    sys.path.insert(0, _TESTS)
