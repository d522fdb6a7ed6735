"""What a worker asks of its own process."""

import ctypes
import os

# Of GNU's OpenMP, about a millisecond: longer than the pauses between the products of a forward pass, shorter than
# those between passes, in which other workers on the same cores have theirs. Its default is some fifteen times as long.
_SPIN_ROUNDS = "20000"
# <malloc.h>: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, and the largest value that the second may have.
_TRIM, _MMAP, _LARGEST = -1, -3, 1 << 25


def spin_briefly() -> None:
    """How long a torch thread without work keeps its core; to be called before torch is loaded.

    Does nothing where the environment has a wish of its own.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPIN_ROUNDS)


def keep_freed_memory() -> None:
    """What one step frees serves the next. glibc would give tensors of a megabyte back to the kernel and get them again
    page by page, which takes longer than most of what is done with rows of logits. Nothing on other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP, _LARGEST)
        mallopt(_TRIM, 32 * _LARGEST)
