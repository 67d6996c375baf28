"""Put an engine together: what its options mean, and the parts it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
import triton
from torch import Tensor

from runtime.adaptive import AdaptiveDrafts
from runtime.buffers import Buffers
from runtime.checkpoints.cache import PrefixCache
from runtime.checkpoints.device_pool import DevicePool
from runtime.checkpoints.directory import CheckpointDirectory
from runtime.checkpoints.host_pool import HostPool, host_pool_bytes, host_pool_size
from runtime.checkpoints.image import ImageLayout, image_layout
from runtime.checkpoints.pages import PagePool
from runtime.checkpoints.tiers import Tiers
from runtime.drafter import Drafter
from runtime.errors import BadOption, TargetUnusable
from runtime.executor import Executor
from runtime.layout_cache import layout_cache
from runtime.observe.canary import Canary
from runtime.package import Package
from runtime.plan import Plan
from runtime.scheduler import Scheduler
from runtime.weights import WeightsFile, check_weights, open_weights

DEFAULT_DRAFTS = 3
MOST_THREADS = 1 << 10
MOST = 1 << 62
AS_BUILT = "as built"
AUTO = "auto"
Interval = int | None | Literal["as built"]
Drafts = int | Literal["auto"] | None


@dataclass(frozen=True)
class EngineOptions:
    """The options of `Engine`, unchecked, as its docstring describes them."""

    drafts: Drafts = None
    drafting: bool | None = None
    drafter: str | None = None
    slots: int | None = None
    threads: int | None = None
    eager: bool = False
    checkpoints: bool = True
    interval: Interval = AS_BUILT
    host_pool: int = 0
    checkpoint_dir: str | Path | None = None
    checkpoint_dir_bytes: int | None = None
    prefill_chunk: int | None = None
    prefill_budget: int | None = None
    canary: float = 0.0
    layout_cache: bool | str | Path = True


@dataclass(frozen=True)
class Parts:
    """What an engine is made of. memory: bytes by role, the host pool included."""

    buffers: Buffers
    scheduler: Scheduler
    memory: Mapping[str, int]


def assemble(package: Package, weights: str | Path | Mapping[str, Tensor], options: EngineOptions) -> Parts:
    """Check the options, allocate, and connect. Raises RuntimeStateError before anything is allocated."""
    plan = package.plan
    limits = plan.limits
    check_usable(package)
    drafts, drafter = resolve_drafts(plan, options.drafts, options.drafting, options.drafter)
    drafting = drafter is Drafter.MTP
    slots = in_range("slots", _or(options.slots, limits.max_slots), 1, limits.max_slots)
    chunk = in_range("prefill_chunk", _or(options.prefill_chunk, limits.prefill_chunk), 1, limits.prefill_chunk)
    budget = options.prefill_budget
    if budget is not None:
        in_range("prefill_budget", budget, 1, MOST)
    interval = limits.checkpoint_interval if options.interval == AS_BUILT else options.interval
    if interval is not None:
        in_range("interval", interval, 0, MOST)
    if options.threads is not None:
        set_threads(package, options.threads)
    kept = layout_cache(options.layout_cache, package.kept_folder)
    opened = open_weights(weights, None if kept is None else kept.digests)
    check_weights(plan, opened)
    stamp = f"{package.numerics_sha256} {opened.sha256} triton {triton.__version__}"
    layout = image_layout(plan, stamp, drafting)
    rows, pages = _host_pool_size(plan, layout, options)
    directory = _directory(layout, options)
    on_host = {"host_pool": host_pool_bytes(layout, rows, pages)}
    buffers = Buffers(plan, opened, package.device, on_host, kept if isinstance(opened, WeightsFile) else None)
    checkpoint_rows = limits.checkpoint_slots if options.checkpoints else 0
    cache = PrefixCache(
        checkpoint_rows,
        PagePool(limits.num_pages, owners=checkpoint_rows),
        drafting,
        stamp,
        limits.page_size,
        layout.row_bytes,
        layout.page_bytes,
        reserved_pages=slots * limits.pages_per_slot,
    )
    host = HostPool(layout, rows, pages, pinned=package.device.type == "cuda") if rows else None
    executor = Executor(package, buffers, drafter, options.eager)
    canary = Canary(executor, options.canary) if options.canary != 0 else None
    scheduler = Scheduler(
        executor,
        cache,
        Tiers(cache, DevicePool(buffers, layout), host, directory),
        slots=slots,
        drafts=drafts,
        prefill_chunk=chunk,
        prefill_budget=budget,
        interval=interval,
        canary=canary,
    )
    if options.drafts == AUTO:
        scheduler.adaptive = AdaptiveDrafts(limits.max_drafts)
    return Parts(buffers, scheduler, buffers.memory)


def _or(value: int | None, default: int) -> int:
    return default if value is None else value


def _host_pool_size(plan: Plan, layout: ImageLayout, options: EngineOptions) -> tuple[int, int]:
    """(rows, pages): in the proportion of the plan's own pool. Raises BadOption if not a single checkpoint fits."""
    budget = in_range("host_pool", options.host_pool, 0, MOST)
    if not budget or not options.checkpoints:
        return 0, 0
    per_row = -(-plan.limits.num_pages // max(1, plan.limits.checkpoint_slots)) if layout.page else 0
    rows, pages = host_pool_size(layout, budget, per_row)
    if not rows:
        least = host_pool_bytes(layout, 1, per_row)
        raise BadOption(option="host_pool", value=budget, allowed=f"0, or at least {least} bytes: one checkpoint")
    return rows, pages


def _directory(layout: ImageLayout, options: EngineOptions) -> CheckpointDirectory | None:
    if options.checkpoint_dir is None or not options.checkpoints:
        return None
    most = options.checkpoint_dir_bytes
    if most is not None:
        in_range("checkpoint_dir_bytes", most, 1, MOST)
    return CheckpointDirectory(options.checkpoint_dir, layout, most)


def in_range(option: str, value: int, low: int, high: int) -> int:
    """The value. Raises BadOption unless it is an integer from low to high."""
    if type(value) is not int or not low <= value <= high:
        allowed = f"an integer from {low} to {high}" if high < MOST else f"an integer of at least {low}"
        raise BadOption(option=option, value=value, allowed=allowed)
    return value


def resolve_drafts(
    plan: Plan, drafts: Drafts = None, drafting: bool | None = None, drafter: str | None = None
) -> tuple[int, Drafter]:
    """Drafts per step, those to begin with if they are "auto", and what makes them. Raises BadOption.

    Asked for nothing: the MTP module, if there is one. Asked for drafts without one: lookup.
    """
    most, auto = plan.limits.max_drafts, drafts == AUTO
    if drafting is not None and not isinstance(drafting, bool):
        raise BadOption(option="drafting", value=drafting, allowed="True, False or None")
    made_by = _drafter(plan, drafter)
    if made_by is Drafter.NONE:
        if drafting or drafts not in (None, 0):
            raise BadOption(option="drafter", value=drafter, allowed="another one, with drafts")
        return 0, Drafter.NONE
    if auto and not most:
        raise BadOption(option="drafts", value=AUTO, allowed="0: this package has no room for drafts")
    if auto or (drafts is None and (plan.has_drafter or drafter is not None) and drafting is not False):
        count = min(DEFAULT_DRAFTS, most)
    else:
        count = in_range("drafts", drafts, 0, most) if drafts is not None else 0
    runs = (count > 0 or auto) if drafting is None else drafting
    if (count or auto) and not runs:
        raise BadOption(option="drafts", value=drafts, allowed="0 without drafting")
    return count, made_by if runs else Drafter.NONE


def _drafter(plan: Plan, asked: str | None) -> Drafter:
    fitting = [str(kind) for kind in Drafter if kind is not Drafter.MTP or plan.has_drafter]
    if asked is None:
        return Drafter.MTP if plan.has_drafter else Drafter.LOOKUP
    if asked not in fitting:
        raise BadOption(option="drafter", value=asked, allowed=f"one of {', '.join(fitting)}")
    return Drafter(asked)


def check_usable(package: Package) -> None:
    """Raise TargetUnusable where torch has no device of the package's kind."""
    if package.device.type == "cuda" and not torch.cuda.is_available():
        raise TargetUnusable(target=package.plan.target, detail="torch finds no NVIDIA GPU")


def set_threads(package: Package, threads: int) -> None:
    """Threads of the CPU kernels, for the whole process."""
    in_range("threads", threads, 1, MOST_THREADS)
    if package.device.type == "cpu":
        from runtime.cpu import set_num_threads

        with package.compiling():
            set_num_threads(threads)
