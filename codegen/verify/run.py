"""All checks of a package, in order, each timed; a check that raises has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch

from codegen.verify.beside import beside_reference
from codegen.verify.bisect import locate
from codegen.verify.cases import draw_cases, given_cases
from codegen.verify.checks import Property, properties
from codegen.verify.errors import CannotVerify, cannot_verify
from codegen.verify.modes import RunFailed
from codegen.verify.outcome import Outcome, Suspect
from codegen.verify.reference import plain
from codegen.verify.report import Check, Finding, Report
from codegen.verify.static import check_files
from codegen.verify.subject import Subject, encode, read_spec, read_weights
from runtime.cpu import get_num_threads, set_num_threads
from runtime.package import open_package

SEED = 0
PROMPTS = 8
NEW_TOKENS = 24
Prompts = int | Sequence[str | bytes | Sequence[int]]
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Options:
    """What `verify_package` was asked for."""

    prompts: Prompts
    new_tokens: int
    seed: int
    target: str | None
    bisect: bool


def verify_package(
    directory: str | Path,
    weights: str | Path | None = None,
    *,
    prompts: Prompts = PROMPTS,
    new_tokens: int = NEW_TOKENS,
    seed: int = SEED,
    target: str | None = None,
    bisect: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Prove on this machine that the bits of a token depend only on its prefix, its seed and the build.

    weights: a safetensors file; None takes seeded random ones. prompts: how many to draw, or the prompts themselves.
    new_tokens: for each prompt. seed: of drawn prompts and weights. target: None takes the one that this machine runs.
    bisect: name the first buffer that differs where a check fails. progress(title, done, total): before each check.
    Raises CannotVerify for what cannot be verified at all: no package, weights of another model.
    """
    start, directory = perf_counter(), Path(directory)
    options = Options(prompts, new_tokens, seed, target, bisect)
    with threads_kept():
        files = timed(Property("files", "the manifest's files are unchanged", lambda: check_files(directory)))
        if not files.passed:
            return Report(str(directory), "", "", (files,), perf_counter() - start)
        subject, label = open_subject(directory, Path(weights) if weights else None, options)
        done = (files, *_checks(subject, options.bisect, progress))
    return Report(str(directory), subject.package.plan.target, label, done, perf_counter() - start)


@contextmanager
def threads_kept() -> Iterator[None]:
    """Inside, torch has one thread: it only compares and copies, and would compete with the kernels for the cores."""
    of_torch, of_kernels = torch.get_num_threads(), get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(of_torch)
        set_num_threads(of_kernels)


def _checks(subject: Subject, bisect: bool, progress: Progress | None) -> Iterator[Check]:
    todo = list(properties(subject))
    for number, item in enumerate(todo):
        if progress is not None:
            progress(item.title, number, len(todo))
        yield timed(item, subject if bisect else None)


def open_subject(directory: Path, weights: Path | None, options: Options) -> tuple[Subject, str]:
    """The package with weights and cases, and what the weights are called. Raises CannotVerify."""
    if options.new_tokens < 1 or (isinstance(options.prompts, int) and options.prompts < 1):
        raise CannotVerify(detail="prompts and new tokens must be at least 1")
    with cannot_verify():
        package, spec = open_package(directory, options.target), read_spec(directory)
        tensors, label = read_weights(package, spec, weights, options.seed)
        limits = package.plan.limits
        if isinstance(options.prompts, int):
            cases = draw_cases(limits, options.prompts, options.new_tokens, options.seed)
        else:
            cases = given_cases(limits, encode(package, options.prompts), options.new_tokens, options.seed)
    return Subject(package, spec, tensors, cases), label


def timed(item: Property, subject: Subject | None = None) -> Check:
    """Make a check. subject: look closer where it fails. Only CannotVerify is passed on."""
    start = perf_counter()
    try:
        outcome = item.check()
    except CannotVerify:
        raise
    except RunFailed as failure:
        outcome = _broken(item.name, ("cold", failure.mode.name), failure.error, Suspect(failure.mode, failure.case))
    except Exception as error:
        outcome = _broken(item.name, ("", ""), error, None)
    findings = outcome.findings
    if findings and subject is not None:
        findings = [*closer(item.name, outcome.suspect, subject), *findings]
    return Check(
        name=item.name,
        title=item.title,
        passed=not findings,
        compared=outcome.compared,
        unit=outcome.unit,
        seconds=perf_counter() - start,
        detail=outcome.detail,
        findings=tuple(findings),
    )


def _broken(name: str, modes: tuple[str, str], error: Exception, suspect: Suspect | None) -> Outcome:
    """A check that could not be made to its end."""
    return Outcome(0, [Finding(name, modes, -1, "", "", f"{type(error).__name__}: {error}")], suspect=suspect)


def closer(name: str, suspect: Suspect | None, subject: Subject) -> list[Finding]:
    """Bisect a failed check; nothing for one that no run of the engine was part of."""
    if suspect is None:
        return []
    try:
        if name.startswith("reference"):
            return beside_reference(subject, name, suspect.case, plain(subject, suspect.case))
        return locate(subject, name, suspect)
    except Exception as error:
        return [Finding(name, ("", ""), -1, "", "", f"bisecting failed: {type(error).__name__}: {error}")]
