"""How long a torch thread without work keeps its core. To be called before torch is loaded."""

import os

# Of GNU's OpenMP, about a millisecond: longer than the pauses between the products of a forward pass, shorter than
# those between passes, in which other workers on the same cores have theirs. Its default is some fifteen times as long.
_ROUNDS = "20000"


def spin_briefly() -> None:
    """Does nothing where the environment has a wish of its own."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _ROUNDS)
