"""Random ways to draw tokens, and requests that ask for them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from random import Random

from runtime.engine import Engine
from runtime.request import Request
from tests.sampling.matcher import Pattern


@dataclass(frozen=True)
class How:
    """The sampling options of a request; names as in Engine.submit."""

    temperature: float = 0.0
    seed: int = 0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0


@dataclass(frozen=True)
class Ask:
    """A request. pattern: of a grammar, or nothing."""

    prompt: tuple[int, ...]
    max_new_tokens: int
    how: How = field(default_factory=How)
    stop_tokens: tuple[int, ...] = ()
    stop: tuple[bytes, ...] = ()
    pattern: str = ""

    def submit(self, engine: Engine) -> Request:
        """Queue it."""
        options = asdict(self.how) | {"logit_bias": dict(self.how.logit_bias)}
        return engine.submit(
            list(self.prompt),
            max_new_tokens=self.max_new_tokens,
            stop_tokens=self.stop_tokens,
            stop_at_eos=False,
            stop=self.stop,
            grammar=Pattern(self.pattern) if self.pattern else None,
            **options,
        )


PATTERNS = ("(ab|cd)+", "[0-9]+(\\.[0-9]+)?", "(the |a |lazy |dog )*", "[a-z ]+", "([a-m][n-z])+")


def draw_how(rng: Random, vocab_size: int) -> How:
    """Each option is at rest in half of the draws or more."""

    def sometimes(*values: float) -> float:
        return rng.choice(values) if rng.random() < 0.4 else values[0]

    biased = rng.sample(range(vocab_size), rng.randint(1, 8)) if rng.random() < 0.25 else ()
    return How(
        temperature=rng.choice((0.0, 0.5, 0.8, 1.0, 1.5)),
        seed=rng.getrandbits(63),
        top_k=int(sometimes(0, 1, 2, 5, 40, 10_000)),
        top_p=sometimes(1.0, 0.95, 0.8, 0.3, 1e-3),
        min_p=sometimes(0.0, 0.01, 0.1, 0.5, 1.0),
        repetition_penalty=sometimes(1.0, 1.1, 1.5, 0.8),
        presence_penalty=sometimes(0.0, 0.5, -0.5, 2.0),
        frequency_penalty=sometimes(0.0, 0.25, -0.25, 1.0),
        logit_bias=tuple(sorted((token, rng.choice((-100.0, -1.0, 0.5, 3.0))) for token in biased)),
        min_tokens=int(sometimes(0, 1, 4, 30)),
    )


def draw_ask(rng: Random, vocab_size: int, text: bytes) -> Ask:
    """A request with a piece of a text as its prompt."""
    start, size = rng.randrange(len(text) - 60), rng.randint(1, 40)
    letters = sorted(set(text))
    return Ask(
        prompt=tuple(text[start : start + size]),
        max_new_tokens=rng.randint(1, 24),
        how=draw_how(rng, vocab_size),
        stop_tokens=tuple(rng.sample(letters, 2)) if rng.random() < 0.3 else (),
        stop=tuple(bytes(rng.choices(letters, k=rng.randint(1, 2))) for _ in range(2)) if rng.random() < 0.2 else (),
        pattern=rng.choice(PATTERNS) if rng.random() < 0.15 else "",
    )
