"""Scenario chat: conversations that take turns, each prompt the whole text so far: what is restored, kept, waited for.

Everything runs with the interval asked for, several times, and once with a checkpoint at every page. The time until a
first token is its median over rounds, which other work on the machine disturbs little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from statistics import median
from typing import Any

from runtime.assemble import MOST, in_range
from runtime.bench.common import TEXT, Ask, Cold, Model, Progress, drain, percentiles, quiet
from runtime.engine import Engine
from runtime.errors import BenchUnavailable

FIRST_TOKEN_RATIO = 1.5  # of the last turn to the second
MOST_CONVERSATIONS = 26


@dataclass(frozen=True)
class ChatOptions:
    """Tokens are ranges, ends included. interval: as an Engine's; system_tokens: of the prompt that all share."""

    interval: int | None = 0
    rounds: int = 5
    conversations: int = 8
    turns: int = 12
    system_tokens: int = 320
    turn_tokens: tuple[int, int] = (44, 60)
    answer_tokens: tuple[int, int] = (44, 60)
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Turn:
    """What a turn took. best: position up to which all had been processed and was asked to be kept, None: unknown.

    found: the longest checkpoint when it was submitted; recomputed: of `prefilled`, for want of a checkpoint.
    """

    conversation: int
    turn: int
    prompt_tokens: int
    best: int | None
    found: int
    restored: int
    prefilled: int
    recomputed: int
    first_token_ms: float


@dataclass(frozen=True)
class Kept:
    """Checkpoints of the device after a turn. bytes: rows and the pages that only checkpoints hold.

    exclusive_bytes: what evicting each alone would free, summed: pages that two of them share are not counted.
    """

    rows: int
    pages: int
    bytes: int
    exclusive_bytes: int


@dataclass(frozen=True)
class Chat:
    """What came of all conversations. answers: by what was asked; kept: after each round of turns."""

    turns: list[Turn]
    answers: dict[Ask, list[int]]
    kept: list[Kept]
    written: int
    written_bytes: int
    evicted: int


def run_chat(model: Model, options: ChatOptions, progress: Progress = print) -> dict[str, Any]:
    """All figures as JSON-ready data. Raises BenchUnavailable if they do not fit max_context."""
    _check(model, options)
    rounds = []
    for number in range(options.rounds):
        progress(f"round {number + 1} of {options.rounds}: {options.conversations} x {options.turns} turns")
        rounds.append(_converse(model, options, options.interval))
    progress("the same with a checkpoint at every page")
    chats = {"asked": _steady(rounds), "every page": _converse(model, options, None)}
    progress("the same, cold")
    cold = Cold(model)
    same = {name: all(cold(ask) == tokens for ask, tokens in chat.answers.items()) for name, chat in chats.items()}
    asked = chats["asked"]
    second, last = (_first_token_ms(asked.turns, turn) for turn in (2, options.turns))
    return {
        "scenario": "chat",
        "options": asdict(options),
        "drafts": model.num_drafts,
        "turns": [asdict(turn) for turn in asked.turns],
        "first_token_ms": {"turn 2": second, f"turn {options.turns}": last, "ratio": last / second},
        "all_first_token_ms": percentiles([turn.first_token_ms for turn in asked.turns]),
        "pool": _pool(model),
        "kept": {name: _sizes(chat) for name, chat in chats.items()},
        "checks": {
            "answers are those of a cold engine": same["asked"],
            "answers are those of a cold engine, with a checkpoint at every page": same["every page"],
            **_promises(asked.turns),
            f"first token at turn {options.turns} within {FIRST_TOKEN_RATIO} x turn 2": last
            <= FIRST_TOKEN_RATIO * second,
            "writes no more bytes than with a checkpoint at every page": asked.written_bytes
            <= chats["every page"].written_bytes,
        },
    }


def _check(model: Model, options: ChatOptions) -> None:
    in_range("conversations", options.conversations, 3, MOST_CONVERSATIONS)
    in_range("turns", options.turns, 2, MOST)
    in_range("rounds", options.rounds, 1, MOST)
    limits = model.package.plan.limits
    most = options.system_tokens + options.turns * (options.turn_tokens[1] + options.answer_tokens[1])
    if most > limits.max_context:
        raise BenchUnavailable(what="chat", detail=f"{most} tokens must fit max_context {limits.max_context}")


def _steady(rounds: Sequence[Chat]) -> Chat:
    """The rounds as one: each did the same, so only times are left to join."""
    turns = [
        replace(same[0], first_token_ms=median(turn.first_token_ms for turn in same))
        for same in zip(*(chat.turns for chat in rounds), strict=True)
    ]
    assert all(chat.answers == rounds[0].answers for chat in rounds)
    return replace(rounds[0], turns=turns)


# Conversations


def _system(engine: Engine, options: ChatOptions) -> list[int]:
    text = TEXT * (options.system_tokens // len(TEXT) + 1)
    return engine.tokenizer.encode(text.encode()[: options.system_tokens])[: options.system_tokens]


def _user_turns(options: ChatOptions, conversation: int) -> Iterator[tuple[bytes, int]]:
    """(what is said, tokens of the answer) by turn. A speaker's first byte is its own: there the shared prefix ends."""
    rng = Random(f"{options.seed} {conversation}")
    for _ in range(options.turns):
        length, start = rng.randint(*options.turn_tokens), rng.randrange(len(TEXT))
        said = f"{chr(ord('A') + conversation)}: {(TEXT * 2)[start:]}".encode()
        yield said[: length - 1] + b"\n", rng.randint(*options.answer_tokens)


def _converse(model: Model, options: ChatOptions, interval: int | None) -> Chat:
    """All conversations on one engine: the first turn of each, then the second of each, and so on."""
    engine = model.engine(interval=interval)
    system = _system(engine, options)
    texts = [list(system) for _ in range(options.conversations)]
    plans = [_user_turns(options, conversation) for conversation in range(options.conversations)]
    turns: list[Turn] = []
    answers: dict[Ask, list[int]] = {}
    kept: list[Kept] = []
    before = engine.scheduler.cache.counts.written
    with engine, quiet():
        for turn in range(1, options.turns + 1):
            for conversation, plan in enumerate(plans):
                said, length = next(plan)
                best = _best(len(system), texts[conversation], conversation, turn)
                prompt = (*texts[conversation], *said)
                ask = Ask(prompt, length, options.temperature, options.seed + turn, stop_at_eos=False)
                turns.append(_take_turn(engine, ask, conversation + 1, turn, best, answers))
                texts[conversation] = [*prompt, *answers[ask]]
            kept.append(_kept(engine))
        counts = engine.scheduler.cache.counts
        written = counts.written - before
        return Chat(turns, answers, kept, written, written * engine.scheduler.cache.row_bytes, counts.evicted)


def _best(system: int, text: Sequence[int], conversation: int, turn: int) -> int | None:
    """The position to resume at: the end of the last answer, or the shared prompt, which the second one has kept."""
    if turn > 1:
        return len(text) - 1
    return system if conversation >= 2 else None


def _take_turn(
    engine: Engine, ask: Ask, conversation: int, turn: int, best: int | None, answers: dict[Ask, list[int]]
) -> Turn:
    found = engine.cache.find(ask.prompt)
    request = ask.submit(engine)
    drain(engine)
    answers[ask] = request.output
    assert request.first_token_at is not None
    return Turn(
        conversation=conversation,
        turn=turn,
        prompt_tokens=request.prompt_len,
        best=best,
        found=found,
        restored=request.restored_position,
        prefilled=request.prefilled_tokens,
        recomputed=request.recomputed_tokens,
        first_token_ms=1e3 * (request.first_token_at - request.submitted_at),
    )


# Figures


def _kept(engine: Engine) -> Kept:
    """With no request running, every page in use is a checkpoint's."""
    account, cache = engine.cache.explain(), engine.scheduler.cache
    rows, pages = account.rows - account.rows_free, account.pages - account.pages_free
    size = rows * cache.row_bytes + pages * cache.page_bytes
    return Kept(rows, pages, size, sum(row.bytes for row in account.kept))


def _sizes(chat: Chat) -> dict[str, Any]:
    return {
        "written": chat.written,
        "written_bytes": chat.written_bytes,
        "evicted": chat.evicted,
        "peak_bytes": max(kept.bytes for kept in chat.kept),
        "prefilled_tokens": sum(turn.prefilled for turn in chat.turns),
        "recomputed_tokens": sum(turn.recomputed for turn in chat.turns),
        "by_turn": [asdict(kept) for kept in chat.kept],
    }


def _pool(model: Model) -> dict[str, int]:
    plan = model.package.plan
    rows, pages = (sum(buffer.bytes for buffer in plan.role(role)) for role in ("checkpoint", "kv"))
    limits = plan.limits
    return {
        "rows": limits.checkpoint_slots,
        "row_bytes": rows // limits.checkpoint_slots,
        "pages": limits.num_pages,
        "page_bytes": pages // limits.num_pages if limits.num_pages else 0,
        "bytes": rows + pages,
    }


def _first_token_ms(turns: Sequence[Turn], number: int) -> float:
    return median(turn.first_token_ms for turn in turns if turn.turn == number)


def _promises(turns: Sequence[Turn]) -> dict[str, bool]:
    later = [turn for turn in turns if turn.turn > 1]
    first = [turn for turn in turns if turn.turn == 1 and turn.best is not None]
    return {
        "every turn resumes at the longest checkpoint and prefills what is left, nothing else": all(
            t.restored == t.found and t.prefilled == t.prompt_tokens - t.found for t in turns
        ),
        "for every later turn that is the end of the answer before it": all(
            t.restored == t.best and not t.recomputed for t in later
        ),
        "for first turns, from the third on, it is the shared system prompt": all(
            t.best is not None and t.restored >= t.best for t in first
        ),
    }
