"""What a kernel does to memory, found by interpreting its Python text: no Triton, no GPU, milliseconds."""

from __future__ import annotations

from codegen.access.expressions import Access, Arguments
from codegen.access.interpret import accesses, stored_contents
from codegen.access.record import RecordedLaunch, record
from codegen.access.source import KernelSource, NotUnderstood, read_source
from codegen.access.values import INT, Range

__all__ = [
    "INT",
    "Access",
    "Arguments",
    "KernelSource",
    "NotUnderstood",
    "Range",
    "RecordedLaunch",
    "accesses",
    "read_source",
    "record",
    "stored_contents",
]
