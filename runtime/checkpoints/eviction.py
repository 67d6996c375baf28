"""Which checkpoint is worth least: recency, and the recomputation saved per byte."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Worth:
    """What speaks for a checkpoint.

    saved_tokens: tokens that would be processed again without it, back to the next checkpoint above; bytes: that its
    eviction frees, pages that others share not counted; age: uses of other checkpoints since its own last one, >= 1.
    """

    saved_tokens: int
    bytes: int
    age: int


def worth(measured: Worth) -> float:
    """Tokens saved per byte and age.

    The two terms of Marconi (arXiv 2411.19379: recency and FLOP efficiency), multiplied instead of summed, so that
    there is no weight to tune; dividing by the age is hyperbolic caching (Blankstein et al., USENIX ATC 2017).
    """
    return measured.saved_tokens / (measured.bytes * measured.age)
