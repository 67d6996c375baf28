"""How many tokens to draft: what acceptance and step times so far say is fastest. It changes nothing but speed."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

TIMES = 15  # steps kept per bucket and number of drafts: their median is robust against a busy machine
MEMORY = 0.99  # of the counts of a draft position, per observation: about 100 of them
JOINED = 8.0  # of them count at most once a request has joined
SEEN = 4.0  # observations from which on a draft position is judged by itself
FIRST = (2, 0)  # numbers timed first, and the most there is: the others lie between or beyond them
TIMED_STEPS = 4  # in a row with a number that no step was timed with
TRY_STEPS = 2  # in a row with a larger number: one makes the drafts, the next verifies them
TRY_FIRST, TRY_LAST = 64, 1024  # decode steps between two tries; it doubles until a request joins
TRY_LATEST = 256  # decode steps after which a number is tried that does not promise anything
DECIDE_FIRST, DECIDE_LAST = 8, 64  # decode steps between two decisions; it doubles until a request joins. Weighing all
# numbers takes 20 us, which a short step has not to spare.
GAIN = 1.02  # by which another number must be better to replace the one in use
NEAR = 0.85  # of the best speed: where a number that was not timed yet may turn out to be better


class AdaptiveDrafts:
    """Chooses the number of drafts of each step, 0 .. most.

    A step with K drafts emits 1 + p_1 + p_1 p_2 + ... tokens, p_i being the probability that draft i is accepted if
    those before it are; it takes a time that depends on K and the bucket. Both are measured as requests run, times of
    numbers that were not used yet are interpolated, and the K with the most tokens per second is used. A larger one is
    tried now and then, and when a request joins: what is not drafted is not known.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._accepted = [[0.0, 0.0] for _ in range(most)]  # [accepted, proposed] by draft position, fading
        self._times: dict[int, dict[int, deque[float]]] = {}
        self._used: dict[int, int] = {}
        self._trial = (0, 0, 0)  # bucket, drafts, steps left
        self._since, self._wait = 0, TRY_FIRST
        self._settled, self._steady = 0, DECIDE_FIRST  # steps until the next decision, and after it
        self._untried = 0  # decode steps since the last try
        self.attentive = True  # whether to observe the step just chosen: once all is known, one of eight will do

    def joined(self) -> None:
        """A request begins to decode: its text may be another kind."""
        self._since, self._wait = TRY_FIRST, TRY_FIRST
        self._settled, self._steady = 0, DECIDE_FIRST
        for seen in self._accepted:
            weight = min(1.0, JOINED / seen[1]) if seen[1] else 1.0
            seen[0], seen[1] = seen[0] * weight, seen[1] * weight

    def choose(self, bucket: int) -> int:
        """Drafts to make in the next step of a bucket."""
        if self._settled and bucket in self._used:
            self._settled = left = self._settled - 1
            self.attentive = self._steady < DECIDE_LAST or not left & 7
            return self._used[bucket]
        self.attentive = True
        of, drafts, left = self._trial
        if left and of == bucket:
            self._trial = (bucket, drafts, left - 1)
            return drafts
        return self._decide(bucket)

    def _decide(self, bucket: int) -> int:
        """A number that has to be timed first, the fastest, or now and then another."""
        times = self._times.get(bucket, {})
        for first in (*FIRST, self.most):
            if min(first, self.most) not in times:
                return self._try(bucket, min(first, self.most), TIMED_STEPS)
        used = self._used[bucket] = self._fastest(bucket)
        self._since += self._steady
        self._untried += self._steady
        self._settled, self._steady = self._steady - 1, min(2 * self._steady, DECIDE_LAST)
        if self._since > self._wait:
            self._since, self._wait = 0, min(2 * self._wait, TRY_LAST)
            untimed = self._promising(bucket, used)
            if untimed is not None:
                return self._try(bucket, untimed, TIMED_STEPS)
            if used < self.most and (self._near(bucket, used + 1, used) or self._untried > TRY_LATEST):
                return self._try(bucket, used + 1, TRY_STEPS)
        return used

    def _near(self, bucket: int, drafts: int, used: int) -> bool:
        """Whether a number may turn out to be faster than the one in use."""
        return self._speed(bucket, drafts) > NEAR * self._speed(bucket, used)

    def _promising(self, bucket: int, used: int) -> int | None:
        """A number without a time of its own that may be faster than the one in use."""
        untimed = [k for k in range(self.most + 1) if k not in self._times[bucket]]
        best = max(untimed, key=lambda k: self._speed(bucket, k), default=used)
        return best if best != used and self._near(bucket, best, used) else None

    def _try(self, bucket: int, drafts: int, steps: int) -> int:
        self._trial, self._settled, self._untried = (bucket, drafts, steps - 1), 0, 0
        return drafts

    def observe(self, bucket: int, drafts: int, seconds: float | None, accepted: Sequence[int]) -> None:
        """What a step that verified `drafts` drafts did.

        seconds: from step to step, or of the step alone if a prefill or a change of slots came before it, so that a
        busy engine learns too; None if it was no ordinary one; accepted: drafts accepted, per slot.
        """
        for count in accepted:
            for position in range(min(count + 1, drafts)):
                seen = self._accepted[position]
                seen[0] = seen[0] * MEMORY + (position < count)
                seen[1] = seen[1] * MEMORY + 1.0
        if seconds is not None:
            self._times.setdefault(bucket, {}).setdefault(drafts, deque(maxlen=TIMES)).append(seconds)

    def tokens(self, drafts: int) -> float:
        """Expected tokens of a step. A position that was hardly drafted yet is taken to be like the one before it."""
        total = likely = 1.0
        rate = 0.5
        for accepted, proposed in self._accepted[:drafts]:
            rate = (accepted + SEEN * rate) / (proposed + SEEN)
            likely *= rate
            total += likely
        return total

    def seconds(self, bucket: int, drafts: int) -> float:
        """Of a step: the median of those timed, else on the line through the nearest two that were; nan of nothing."""
        timed = {k: median(times) for k, times in self._times.get(bucket, {}).items()}
        if drafts in timed or len(timed) < 2:
            return timed.get(drafts, float("nan"))
        low, high = sorted(sorted(timed, key=lambda k: abs(k - drafts))[:2])
        return timed[low] + (timed[high] - timed[low]) * (drafts - low) / (high - low)

    def _speed(self, bucket: int, drafts: int) -> float:
        """Expected tokens per second of a slot."""
        return self.tokens(drafts) / self.seconds(bucket, drafts)

    def _fastest(self, bucket: int) -> int:
        used = self._used.get(bucket, 0)
        speeds = [self._speed(bucket, k) for k in range(self.most + 1)]
        best = max(range(self.most + 1), key=speeds.__getitem__)
        return best if speeds[best] > speeds[used] * GAIN else used
