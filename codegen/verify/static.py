"""What holds without running a kernel: files, plan, launches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from codegen.lower import lower
from codegen.package import MANIFEST
from codegen.tuned import tuned_in
from codegen.verify.errors import cannot_verify
from codegen.verify.launches import LaunchTap, call_section, mismatches, planned
from codegen.verify.modes import Mode
from codegen.verify.outcome import Outcome
from codegen.verify.probe import Replay
from codegen.verify.report import Finding
from codegen.verify.subject import Subject
from runtime.assemble import resolve_drafts
from runtime.executor import Phase
from runtime.files import sha256_of
from runtime.manifest import FILE_BYTES, read_manifest


def check_files(directory: Path) -> Outcome:
    """Every file of the manifest is there and has its hash. Raises CannotVerify without a sound manifest."""
    with cannot_verify():
        files = read_manifest(directory).files
    findings = []
    for name, digest in files.items():
        detail = _changed(directory / name, digest)
        if detail:
            detail = f"{name} {detail}"
            findings.append(Finding("files", (MANIFEST, "folder"), -1, "", name, detail))
    return Outcome(len(files), findings, unit="files")


def _changed(file: Path, digest: str) -> str:
    """What is wrong with a file, or nothing."""
    try:
        return "" if sha256_of(file, FILE_BYTES) == digest else "has changed"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def check_plan(subject: Subject) -> Outcome:
    """Lowering spec.json again, with the package's tuned values, gives its plan, for every target it was built for."""
    path = subject.package.path
    targets = json.loads((path / MANIFEST).read_text())["targets"]
    findings = []
    for target, entry in targets.items():
        written = path / entry["folder"] / "plan.json"
        wanted = lower(subject.spec, target, tuned_in(json.loads(written.read_text()))).sha256
        for where, found in (
            (MANIFEST, entry["plan_sha256"]),
            ("plan.json", hashlib.sha256(written.read_bytes()).hexdigest()),
        ):
            if found != wanted:
                detail = f"{where} of {target} has plan {found[:12]}, spec.json lowers to {wanted[:12]}"
                findings.append(Finding("plan", ("spec.json", where), -1, "", "", detail))
    return Outcome(len(targets), findings, unit="plans")


def check_launches(subject: Subject) -> Outcome:
    """Every launch of the step module is the plan's: kernel, and each argument a plan buffer or part of the key."""
    plan = subject.package.plan
    _, drafter = resolve_drafts(plan, None, subject.drafting)
    buffers = subject.engine(Mode("launches", drafting=subject.drafting)).buffers
    compared, findings = 0, []
    for replay in keys(subject):
        with LaunchTap(subject.package, run=False) as tap:
            call_section(subject.package, buffers, drafter, replay)
        wanted = planned(plan, drafter, replay)
        compared += len(wanted)
        for launch, detail in mismatches(tap.calls, wanted, buffers):
            text = f"{replay}: {launch.kernel}: {detail}"
            findings.append(Finding("launches", ("plan", "step module"), -1, launch.layer, detail.split()[-1], text))
    return Outcome(compared, findings, unit="launches")


def keys(subject: Subject) -> Iterator[Replay]:
    """Replays of every kind: all sizes of prefill, one and all rows of score, all buckets, no, one and all drafts."""
    limits = subject.package.plan.limits
    for rows in limits.prefill_rows:
        yield Replay(Phase.PREFILL, rows, 0, 0, (0,), (0,))
    yield Replay(Phase.BEGIN, 1, 0, limits.max_drafts, (0,), (0,))
    yield Replay(Phase.SAVE, 1, 0, 0, (0,), (0,))
    yield Replay(Phase.RESTORE, 1, 0, 0, (0,), (0,))
    for rows in sorted({1, limits.max_rows}):
        yield Replay(Phase.SCORE, rows, 0, 0, (0,), (0,))
    for bucket in limits.buckets:
        for drafts in sorted({0, min(1, limits.max_drafts), limits.max_drafts}):
            yield Replay(Phase.STEP, bucket, drafts, drafts, (0,), (0,))
