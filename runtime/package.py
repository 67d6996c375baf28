"""Open a rendered package: verify it, pick the target, import its step module."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from runtime.errors import PackageDamaged, PackageNotFound, PackageTooNew, TargetMissing
from runtime.kernel_cache import cache_scope
from runtime.plan import Plan, read_plan

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True)
class Package:
    """A verified package and the step module of one target. numerics_sha256: of what decides bits, without weights."""

    path: Path
    name: str
    spec_sha256: str
    numerics_sha256: str
    plan: Plan
    step: ModuleType
    cache_folder: Path

    def compiling(self) -> AbstractContextManager[None]:
        """Scope in which kernels may be compiled: they land in this package's cache."""
        return cache_scope(self.cache_folder)

    @property
    def device(self) -> torch.device:
        """Where the target runs."""
        return torch.device(self.plan.target.partition(":")[0])


def open_package(path: str | Path, target: str | None = None) -> Package:
    """Read and verify the package at `path`. target: e.g. "cpu"; None takes a usable CUDA target, else cpu.

    Raises PackageNotFound, PackageDamaged, PackageTooNew or TargetMissing.
    """
    path = Path(path).resolve()
    manifest = _read_manifest(path)
    _verify_files(path, manifest["files"])
    target = _pick_target(path, manifest["targets"], target)
    entry = manifest["targets"][target]
    try:
        plan = read_plan(json.loads((path / entry["folder"] / "plan.json").read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise PackageDamaged(path=path / entry["folder"] / "plan.json", detail=f"not a plan ({error})") from error
    return Package(
        path=path,
        name=manifest["name"],
        spec_sha256=manifest["spec_sha256"],
        numerics_sha256=entry["numerics_sha256"],
        plan=plan,
        step=_import_step(path / entry["folder"], plan, manifest),
        cache_folder=path / "cache" / entry["folder"],
    )


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    if not file.is_file():
        raise PackageNotFound(path=path, manifest=MANIFEST)
    try:
        manifest = json.loads(file.read_text())
        found = manifest["format"]
        if type(found) is int and found > FORMAT:
            raise PackageTooNew(path=path, found=found, known=FORMAT)
        missing = {"name", "spec_sha256", "targets", "files"} - set(manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PackageDamaged(path=file, detail=f"not a manifest ({error!r})") from error
    if missing or type(found) is not int:
        raise PackageDamaged(path=file, detail=f"lacks {', '.join(sorted(missing)) or 'a format number'}")
    return dict(manifest)


def _verify_files(path: Path, files: Mapping[str, str]) -> None:
    """Every listed file is there with its hash. Raises PackageDamaged with the first that is not."""
    for name, digest in files.items():
        file = path / name
        if not file.is_file():
            raise PackageDamaged(path=path, detail=f"{name} is missing")
        try:
            found = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            raise PackageDamaged(path=path, detail=f"{name} cannot be read ({error.strerror})") from error
        if found != digest:
            raise PackageDamaged(path=path, detail=f"{name} differs from its hash in {MANIFEST}")


def _usable(target: str) -> bool:
    """Whether this machine runs `target`: cpu, or cuda:<sm> of a device of that compute capability."""
    kind, _, capability = target.partition(":")
    if kind == "cpu":
        return True
    if kind != "cuda" or not torch.cuda.is_available():
        return False
    major, minor = torch.cuda.get_device_capability()
    return capability == str(10 * major + minor)


def _pick_target(path: Path, targets: Mapping[str, Any], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in targets:
            raise TargetMissing(path=path, wanted=wanted, present=", ".join(targets) or "none")
        return wanted
    usable = sorted((target for target in targets if _usable(target)), key=lambda target: target == "cpu")
    if not usable:
        raise TargetMissing(path=path, wanted="for this machine (cpu)", present=", ".join(targets) or "none")
    return usable[0]


def _import_step(folder: Path, plan: Plan, manifest: Mapping[str, Any]) -> ModuleType:
    """Import <folder>/step.py as part of a package whose name is unique to its content and place."""
    identity = f"{folder}\0{json.dumps(manifest, sort_keys=True)}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    parent = f"stepforge_package_{plan.name.replace('-', '_')}_{digest}"
    name = f"{parent}.step"
    if name not in sys.modules:
        if parent not in sys.modules:
            _load_module(parent, folder / "__init__.py", [str(folder)])
        try:
            _load_module(name, folder / "step.py", None)
        except (ImportError, SyntaxError) as error:
            raise PackageDamaged(path=folder / "step.py", detail=f"cannot be imported ({error})") from error
    return sys.modules[name]


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
