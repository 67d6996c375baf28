"""Ahead-of-time compilation: fill the package's Triton cache for each target and report what every kernel takes."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from codegen.aot_worker import (
    Job,
    Resources,
    ToolchainRefused,
    compile_job,
    cpu_fingerprint,
    device_functions_sha256,
    end_with_parent,
)
from codegen.errors import BuildFailed, OutputNotWritten, ToolchainUnusable
from codegen.plan import Plan
from codegen.render import target_folder
from codegen.whole_file import replace_whole
from dsl.files import read_regular

INDEX = "index.json"
INDEX_BYTES = 16 << 20
HALF_CACHED = re.compile(r"tmp\.pid_(\d{1,9})_[0-9a-f-]+")  # folder of a file that Triton has not written to its end
Progress = Callable[[str, int, int], None]


def compile_package(
    plan: Plan, directory: Path, jobs: int | None = None, progress: Progress | None = None
) -> list[Resources]:
    """Compile every kernel instance of `plan` that is not current in `<directory>/cache/<target>`.

    progress(kernel, done, total) is called after each. Raises BuildFailed with the first kernel that does not compile,
    or OutputNotWritten.
    """
    try:
        return _compile_package(plan, directory, jobs, progress)
    except OSError as error:
        where = error.filename if isinstance(error.filename, str) else directory
        raise OutputNotWritten(path=where, detail=error.strerror or str(error)) from error


def _compile_package(plan: Plan, directory: Path, jobs: int | None, progress: Progress | None) -> list[Resources]:
    cache_dir = directory / "cache" / target_folder(plan.target)
    known = {key: found for key, found in _read_index(cache_dir).items() if _intact(cache_dir, found)}
    work = {_key(job): job for job in compile_jobs(plan, directory)}
    missing = {key: job for key, job in work.items() if key not in known}
    done = {key: known[key] for key in work if key in known}
    for number, (key, resources) in enumerate(_compile(missing, jobs), start=1):
        done[key] = replace(resources, sha256=_folder_sha256(cache_dir / resources.folder))
        if progress is not None:
            progress(resources.kernel, number, len(missing))
    if missing or set(known) - set(done):
        _write_index(cache_dir, done)
        _prune(cache_dir, {resources.folder for resources in done.values()})
    return [done[key] for key in work]


def compile_jobs(plan: Plan, directory: Path) -> Iterator[Job]:
    """One job per kernel instance and row tile."""
    folder = target_folder(plan.target)
    for kernel in plan.kernels:
        path = directory / folder / "kernels" / f"{kernel.name}.py"
        cache_dir = str(directory / "cache" / folder)
        for tile in kernel.row_tiles or (None,):
            params = kernel_params(plan, kernel.name)
            yield Job(kernel.name, str(path), plan.target, cache_dir, params, tile, kernel.num_warps, kernel.options)


def kernel_params(plan: Plan, kernel: str) -> tuple[tuple[str, str], ...]:
    """(parameter, dtype or "scalar") of a kernel, from its first launch. `stream` is the fp32 residual stream."""
    dtypes = {buffer.name: buffer.dtype for buffer in plan.buffers} | {"stream": "fp32"}
    launch = next(launch for _, launch in plan.launches() if launch.kernel == kernel)
    return tuple((name, dtypes.get(value, "scalar")) for name, value in launch.args)


def _compile(work: dict[str, Job], jobs: int | None) -> Iterator[tuple[str, Resources]]:
    if not work:
        return
    workers = min(jobs or len(os.sched_getaffinity(0)), len(work))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, end_with_parent, (os.getpid(),)) as pool:
        futures = {pool.submit(compile_job, job): key for key, job in work.items()}
        for future in as_completed(futures):
            key = futures[future]
            try:
                yield key, future.result()
            except Exception as error:
                pool.shutdown(wait=False, cancel_futures=True)
                raise BuildFailed(kernel=work[key].kernel, target=work[key].target, detail=str(error)[:2000]) from error


def _key(job: Job) -> str:
    """What a compiled instance depends on: its source and parameters, the device functions, compilers and machine."""
    parts = (
        Path(job.path).read_text(),
        repr(job.params),
        repr(job.row_tile),
        repr((job.num_warps, job.options)),
        toolchain(job.target),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def toolchain(target: str) -> str:
    """Identity of everything outside the kernel that decides its binary."""
    parts = [target, platform.machine(), platform.python_version(), _version("triton"), _version("torch")]
    parts.append(device_functions_sha256())
    if target == "cpu":
        try:
            parts.append(cpu_fingerprint())
        except ToolchainRefused as error:
            raise ToolchainUnusable(target=target, detail=str(error)) from error
    return "\0".join(parts)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _intact(cache_dir: Path, resources: Resources) -> bool:
    """Whether a compiled kernel is there as it was compiled; a damaged one is removed, so that it is compiled again."""
    folder = cache_dir / resources.folder
    if not resources.folder.isalnum() or not folder.is_dir():
        return False
    if _folder_sha256(folder) == resources.sha256:
        return True
    shutil.rmtree(folder, ignore_errors=True)
    return False


def _folder_sha256(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(os.fsencode(path.name) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _prune(cache_dir: Path, current: set[str]) -> None:
    """Remove compiled kernels that no kernel of the plan uses any more, and what compilers left that were killed."""
    for folder in cache_dir.iterdir():
        if folder.is_dir() and folder.name not in current:
            shutil.rmtree(folder, ignore_errors=True)
    for left in cache_dir.glob("*/tmp.pid_*"):
        if (made_by := HALF_CACHED.fullmatch(left.name)) and not _is_alive(int(made_by[1])):
            shutil.rmtree(left, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _read_index(cache_dir: Path) -> dict[str, Resources]:
    """What is known of compiled kernels; nothing if the index is not ours to the last field."""
    try:
        index = json.loads(read_regular(cache_dir / INDEX, INDEX_BYTES))
        known = {key: Resources(**fields) for key, fields in index.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return known if all(map(_well_formed, known.values())) else {}


def _well_formed(entry: Resources) -> bool:
    """Whether every field has its type."""
    words = (entry.kernel, entry.folder, entry.sha256)
    numbers = (entry.row_tile, entry.registers, entry.spill_bytes, entry.shared_bytes)
    return (
        all(isinstance(word, str) for word in words)
        and all(number is None or type(number) is int for number in numbers)
        and type(entry.bytes) is int
    )


def _write_index(cache_dir: Path, done: dict[str, Resources]) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    text = json.dumps({key: asdict(value) for key, value in sorted(done.items())}, indent=1) + "\n"
    replace_whole(cache_dir / INDEX, text.encode())
