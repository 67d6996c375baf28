"""Whether a candidate is right: the same bits as the untuned kernel, in every scene, run after run.

Every run starts from the same contents, what the kernel only writes being poisoned, and is compared in every bit of
every tensor that it gets: rows that are not there, other slots and weights must be as before. The untuned kernel
itself is compared with what the launch means in PyTorch. At last the CPU backend's checker looks for races and for
accesses out of bounds, which repeated runs find by luck only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from autotune.arena import Arena, Operands
from autotune.faults import brief, is_the_machines
from autotune.forge import Candidate, Forge
from autotune.meaning import MEANINGS, TOLERANCE, distance
from autotune.scenes import Scene, scenes_of
from codegen.errors import UntunedWrong
from codegen.machine import threads
from codegen.plan import Role
from codegen.tuned import FREE

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
POISONS: Mapping[int, tuple[int, int]] = {
    1: (0x80, 0x46),
    2: (0x7FC1, 0x4640),
    4: (0x7FC0DEAD, 0x4640E400),
    8: (0x5A5A, 0x4640),
}
RUNS_PER_THREADS = 2


class Rejected(Exception):
    """A candidate that may not win, and why."""


@dataclass(frozen=True)
class Expected:
    """What the untuned kernel makes of a scene. written: parameters that it writes without reading them."""

    arena: Arena
    start: Operands
    results: Mapping[str, Tensor]
    written: frozenset[str]

    @property
    def scene(self) -> Scene:
        """The scene."""
        return self.arena.scene


class Judge:
    """Knows what is right for one kernel on one device. Raises UntunedWrong if the untuned kernel is not.

    The untuned kernel goes through what candidates go through, first of all: nothing could be told by a wrong one.
    """

    def __init__(self, forge: Forge, kernel: str, device: torch.device, numerics: str) -> None:
        self.device, self.numerics = device, numerics
        with untuned(kernel):
            self.untuned = forge.candidate(kernel, {})
            self.scenes = [self._expected(scene) for scene in scenes_of(self.untuned.plan, self.untuned.kernel)]
            self.prove(self.untuned)
            self.check_races(self.untuned)

    @property
    def timed(self) -> list[Expected]:
        """The scenes that count."""
        return [expected for expected in self.scenes if expected.scene.weight]

    def _expected(self, scene: Scene) -> Expected:
        arena = Arena(self.untuned.plan, scene, self.device)
        start = arena.operands(self.untuned.plan, self.untuned.kernel)
        plain = self._run(self.untuned, start, frozenset(), 0)
        scratch = [name for name, buffer in start.buffers.items() if buffer.role is Role.SCRATCH]
        written = frozenset(name for name in scratch if self._only_written(start, plain, name))
        results = self._run(self.untuned, start, written, 0)
        self._compare_with_meaning(arena, start, results)
        return Expected(arena, start, results, written)

    def _only_written(self, start: Operands, plain: Mapping[str, Tensor], name: str) -> bool:
        """Whether a tensor's old contents show nowhere in what the kernel writes there."""
        poisoned = self._run(self.untuned, start, frozenset((name,)), 0)
        changed = bits(poisoned[name]) != poison_value(poisoned[name], 0)
        same = torch.equal(bits(poisoned[name])[changed], bits(plain[name])[changed])
        others = all(torch.equal(bits(poisoned[n]), bits(plain[n])) for n in plain if n != name)
        return bool(changed.any()) and same and others

    def _run(self, candidate: Candidate, start: Operands, written: frozenset[str], poison: int) -> dict[str, Tensor]:
        """The tensors after one launch on copies of `start`."""
        operands = start.copy()
        for name in written:
            bits(operands.tensors[name]).fill_(poison_value(operands.tensors[name], poison))
        candidate.launch(operands)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return dict(operands.tensors)

    def _compare_with_meaning(self, arena: Arena, start: Operands, results: Mapping[str, Tensor]) -> None:
        """Where every row is there: what an empty seat leaves alone has no meaning."""
        meaning = MEANINGS.get(self.untuned.kernel.template_name) if arena.scene.weight else None
        for name, meant in (meaning(arena, self.untuned.kernel, start.to_cpu()) if meaning else {}).items():
            far = distance(meant, results[name].cpu())
            if not far <= 1:
                raise Rejected(f"in scene {arena.scene.name}, {name} is off by {far:.3g} times what is tolerated")

    def prove(self, candidate: Candidate) -> None:
        """Raise Rejected unless the candidate is right wherever it may be launched, on one thread, two and all."""
        for expected in self.scenes:
            start = expected.arena.operands(candidate.plan, candidate.kernel)
            own: dict[str, Tensor] | None = None
            for count in self._threads():
                with _threads(count):
                    for run in range(RUNS_PER_THREADS):
                        found = self._run(candidate, start, expected.written, run % 2)
                        own = own or found
                        self._compare(expected, start, own, found, run % 2, count)

    def _threads(self) -> tuple[int | None, ...]:
        """On how many threads a candidate is run; two even where one processor is left, for they take turns there."""
        return (None,) if self.device.type == "cuda" else tuple(sorted({1, 2, threads()}))

    def _compare(
        self,
        expected: Expected,
        start: Operands,
        own: Mapping[str, Tensor],
        found: Mapping[str, Tensor],
        poison: int,
        count: int | None,
    ) -> None:
        where = f"{expected.scene.name}, {count or 'all'} threads"
        for name, tensor in found.items():
            if start.buffers[name].role is Role.WEIGHT:
                if not torch.equal(bits(tensor), bits(start.tensors[name])):
                    raise Rejected(f"it wrote into the weights {name} ({where})")
                continue
            wanted = self._wanted(expected, name, own, poison)
            if torch.equal(bits(tensor), bits(wanted)):
                continue
            place = int((bits(tensor) != bits(wanted)).flatten().nonzero()[0])
            got, want = tensor.flatten()[place].item(), wanted.flatten()[place].item()
            raise Rejected(f"{name}[{place}] is {got}, not {want} ({where})")

    def _wanted(self, expected: Expected, name: str, own: Mapping[str, Tensor], poison: int) -> Tensor:
        """The tensor that a run must leave. Where bits are free: the candidate's own first, if it is close enough."""
        wanted = expected.results[name].clone()
        if name in expected.written:
            untouched = bits(wanted) == poison_value(wanted, 0)
            bits(wanted)[untouched] = poison_value(wanted, poison)
        if self.numerics != FREE or not wanted.is_floating_point():
            return wanted
        first, kept = own[name], wanted.isfinite()
        scale = wanted[kept].float().abs().max().clamp_min(1e-30) if kept.any() else torch.ones(())
        near = (first.float() - wanted.float()).abs() <= TOLERANCE[wanted.dtype] * scale
        return torch.where(near & first.isfinite(), first, wanted)

    def check_races(self, candidate: Candidate) -> None:
        """Raise Rejected if the backend's checker finds a race or an access out of bounds. CPU only."""
        if self.device.type != "cpu":
            return
        from runtime.cpu import CpuBackendError, checked

        for expected in self.scenes:
            operands = expected.arena.operands(candidate.plan, candidate.kernel)
            try:
                with checked(races=True):
                    candidate.launch(operands)
            except CpuBackendError as error:
                if is_the_machines(error):
                    raise
                raise Rejected(f"{brief(error)} ({expected.scene.name})") from error


@contextlib.contextmanager
def untuned(kernel: str) -> Iterator[None]:
    """Inside, whatever would reject a candidate raises UntunedWrong: nothing can be tuned against this kernel."""
    try:
        yield
    except UntunedWrong:
        raise
    except Exception as error:
        if is_the_machines(error):
            raise
        raise UntunedWrong(kernel=kernel, detail=brief(error)) from error


def bits(tensor: Tensor) -> Tensor:
    """A view of a tensor as integers of its size."""
    return tensor.view(BITS[tensor.element_size()])


def poison_value(tensor: Tensor, poison: int) -> int:
    """Bits that no launch writes: a NaN with a payload, or a large number."""
    return POISONS[tensor.element_size()][poison]


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Inside, the CPU backend runs on `count` threads."""
    if count is None:
        yield
        return
    from runtime.cpu import get_num_threads, set_num_threads

    before = get_num_threads()
    set_num_threads(count)
    try:
        yield
    finally:
        set_num_threads(before)
