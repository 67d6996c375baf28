"""What a run's engines are like."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from runtime.checkpoints.host_pool import host_pool_bytes
from runtime.checkpoints.image import image_layout
from runtime.engine import Engine
from runtime.package import Package
from tests.state.subject import Subject


@dataclass(frozen=True)
class Setup:
    """Options of the engines of one run. rows: of the device's checkpoint pool, 0 for no checkpoints at all.

    spare_pages: beyond those that the slots may come to need; host_rows: of the host pool; files: a checkpoint
    directory; scrub: scratch is filled with NaN before every replay.
    """

    drafts: int = 0
    drafting: bool = True
    slots: int = 1
    interval: int | None = 8
    prefill_chunk: int = 16
    prefill_budget: int | None = None
    rows: int = 24
    spare_pages: int = 64
    host_rows: int = 0
    files: bool = False
    files_bytes: int | None = None
    max_queue: int = 1024
    scrub: bool = False
    eager: bool = False

    def package(self, package: Package) -> Package:
        """The package with the sizes that only the runtime reads."""
        limits = package.plan.limits
        pages = min(limits.num_pages, self.slots * limits.pages_per_slot + self.spare_pages)
        limits = replace(limits, num_pages=pages, checkpoint_slots=max(1, self.rows))
        return replace(package, plan=replace(package.plan, limits=limits))

    def engine(self, subject: Subject, folder: Path) -> Engine:
        """An engine; its checkpoint directory, if it has one, is in `folder`."""
        package = self.package(subject.package)
        return Engine(
            package,
            subject.weights,
            drafts=self.drafts if self.drafting else 0,
            drafting=self.drafting,
            slots=self.slots,
            threads=1,
            eager=self.eager,
            checkpoints=self.rows > 0,
            interval=self.interval,
            host_pool=self._host_pool(package),
            checkpoint_dir=folder if self.files else None,
            checkpoint_dir_bytes=self.files_bytes if self.files else None,
            max_queue=self.max_queue,
            prefill_chunk=self.prefill_chunk,
            prefill_budget=self.prefill_budget,
        )

    def _host_pool(self, package: Package) -> int:
        limits = package.plan.limits
        layout = image_layout(package.plan, "", self.drafting)
        per_row = -(-limits.num_pages // limits.checkpoint_slots)
        return host_pool_bytes(layout, self.host_rows, self.host_rows * per_row)
