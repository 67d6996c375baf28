"""Open a rendered package: verify it, pick the target, import its step module."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from runtime.errors import PackageDamaged, PackageNotFound, TargetMissing
from runtime.files import read_regular, unique_keys
from runtime.kernel_cache import cache_scope
from runtime.manifest import FILE_BYTES, MANIFEST, Manifest, TargetEntry, read_manifest, verify_files
from runtime.plan import Plan, read_plan
from runtime.plan_rules import check_plan

NO_BYTECODE = os.devnull  # no file lies below it
_importing = threading.RLock()  # Python's settings of bytecode are the process's: threads take turns


@dataclass(frozen=True)
class Package:
    """A verified package and the step module of one target. numerics_sha256: of what decides bits, without weights."""

    path: Path
    name: str
    numerics_sha256: str
    plan: Plan
    step: ModuleType
    cache_folder: Path

    def compiling(self) -> AbstractContextManager[None]:
        """Scope in which kernels may be compiled: they land in this package's cache."""
        return cache_scope(self.cache_folder, self.kept_folder)

    @property
    def kept_folder(self) -> Path:
        """Where processes keep what the next one need not compute again."""
        return self.path / "cache" / "kept"

    @property
    def device(self) -> torch.device:
        """Where the target runs."""
        return torch.device(self.plan.target.partition(":")[0])


def open_package(path: str | Path, target: str | None = None) -> Package:
    """Read and verify the package at `path`. target: e.g. "cpu"; None takes a usable CUDA target, else cpu.

    Raises PackageNotFound, PackageDamaged, PackageTooNew or TargetMissing.
    """
    path = _resolved(path)
    manifest = read_manifest(path)
    verify_files(path, manifest.files)
    entry = manifest.targets[_pick_target(path, manifest.targets, target)]
    folder = path / entry.folder
    try:
        content = read_regular(folder / "plan.json", FILE_BYTES)
        plan = read_plan(json.loads(content, object_pairs_hook=unique_keys))
        check_plan(plan)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise PackageDamaged(path=folder / "plan.json", detail=f"not a plan ({error})") from error
    for module in ("__init__", *plan.kernels):
        if f"{entry.folder}/kernels/{module}.py" not in manifest.files:
            raise PackageDamaged(path=path, detail=f"{entry.folder}/kernels/{module}.py is not listed in {MANIFEST}")
    return Package(
        path=path,
        name=manifest.name,
        numerics_sha256=entry.numerics_sha256,
        plan=plan,
        step=_import_step(folder, plan, manifest),
        cache_folder=path / "cache" / entry.folder,
    )


def _resolved(path: str | Path) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, ValueError, RuntimeError):  # a loop of links is a RuntimeError until Python 3.12
        raise PackageNotFound(path=path, manifest=MANIFEST) from None


def _usable(target: str) -> bool:
    """Whether this machine runs `target`: cpu, or cuda:<sm> of a device of that compute capability."""
    kind, _, capability = target.partition(":")
    if kind == "cpu":
        return True
    if kind != "cuda" or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return capability == str(10 * major + minor)


def _pick_target(path: Path, targets: Mapping[str, TargetEntry], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in targets:
            raise TargetMissing(path=path, wanted=wanted, present=", ".join(targets) or "none")
        return wanted
    usable = sorted((target for target in targets if _usable(target)), key=lambda target: target == "cpu")
    if not usable:
        raise TargetMissing(path=path, wanted="for this machine (cpu)", present=", ".join(targets) or "none")
    return usable[0]


def _import_step(folder: Path, plan: Plan, manifest: Manifest) -> ModuleType:
    """Import <folder>/step.py as part of a package whose name is unique to its content and place."""
    identity = f"{folder}\0{manifest.digest}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    parent = f"stepforge_package_{plan.name.replace('-', '_')}_{digest}"
    name = f"{parent}.step"
    if name not in sys.modules:
        try:
            with _from_source():
                if parent not in sys.modules:
                    _load_module(parent, folder / "__init__.py", [str(folder)])
                _load_module(name, folder / "step.py", None)
        except Exception as error:
            raise PackageDamaged(path=folder / "step.py", detail=f"cannot be imported ({error!r})") from error
    return sys.modules[name]


@contextmanager
def _from_source() -> Iterator[None]:
    """Inside, modules are made from their source, which has a hash: bytecode beside it is neither read nor written."""
    with _importing:
        before = sys.pycache_prefix, sys.dont_write_bytecode
        sys.pycache_prefix, sys.dont_write_bytecode = NO_BYTECODE, True
        try:
            yield
        finally:
            sys.pycache_prefix, sys.dont_write_bytecode = before


def _load_module(name: str, file: Path, search: list[str] | None) -> None:
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=search)
    if spec is None or spec.loader is None:
        raise PackageDamaged(path=file, detail="cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
