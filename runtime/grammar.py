"""A grammar that says which token may come next: the hook that a matcher, such as xgrammar's, fills."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor

from runtime.errors import BadOption, GrammarFailed

ALL_TOKENS = -1  # a word with all bits set


class Matcher(Protocol):
    """What xgrammar.GrammarMatcher offers, and all that is asked of one. It must roll back drafts and a token more."""

    def fill_next_token_bitmask(self, bitmask: Tensor, index: int = 0) -> Any:
        """Write row `index` of int32 [rows, ceil(vocab / 32)]: bit t % 32 of word t // 32 is set if t may come next."""

    def accept_token(self, token: int) -> bool:
        """Go on by a token; False, and no step, if it may not come."""

    def rollback(self, num_tokens: int) -> None:
        """Take so many accepted tokens back."""

    def is_terminated(self) -> bool:
        """Whether the text is complete and nothing may follow."""


NEEDED = ("fill_next_token_bitmask", "accept_token", "rollback", "is_terminated")


def check_matcher(matcher: object) -> None:
    """Raise BadOption if it is no matcher."""
    missing = [name for name in NEEDED if not callable(getattr(matcher, name, None))]
    if missing:
        allowed = f"a matcher like xgrammar's; this has no {', '.join(missing)}"
        raise BadOption(option="grammar", value=type(matcher).__name__, allowed=allowed)


@contextmanager
def asking_grammar_of(request: int) -> Iterator[None]:
    """Inside, a matcher is called: what it raises is raised as GrammarFailed."""
    try:
        yield
    except Exception as error:
        raise GrammarFailed(request=request, detail=f"{type(error).__name__}: {error}") from error


def fill_masks(matcher: Matcher, masks: Tensor, drafts: Sequence[int]) -> None:
    """Row i of masks [1 + len(drafts), words] int32, on the CPU: what may follow the first i drafts.

    After a draft that may not come no row matters: its target differs from it, and ends what is accepted.
    """
    accepted = 0
    for i in range(len(drafts) + 1):
        if matcher.is_terminated():
            masks[i:] = ALL_TOKENS
            break
        matcher.fill_next_token_bitmask(masks, i)
        if i == len(drafts) or not matcher.accept_token(drafts[i]):
            masks[i + 1 :] = ALL_TOKENS
            break
        accepted += 1
    if accepted:
        matcher.rollback(accepted)


def follow(matcher: Matcher, tokens: Iterable[int]) -> tuple[int, str | None]:
    """Go on by tokens. Returns how many of them count, and why the answer ends with the last: "stop", "grammar" or not.

    "grammar": the last token may not come. Only where the mask left none to choose from is that ever drawn.
    """
    count = 0
    for token in tokens:
        count += 1
        if not matcher.accept_token(token):
            return count, "grammar"
        if matcher.is_terminated():
            return count, "stop"
    return count, None
