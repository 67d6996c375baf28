"""What an NVIDIA target has. Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"."""

from __future__ import annotations

from dataclasses import dataclass

REGISTER_FILE = 64 * 1024  # 32-bit registers of a multiprocessor
KIB = 1024


@dataclass(frozen=True)
class Device:
    """shared_bytes: most a block may ask for. wide_dot: family that computes dots of at least WIDE_ROWS rows."""

    shared_bytes: int
    tensor_columns: int
    families: tuple[str, ...]
    wide_dot: str


WIDE_ROWS = 128  # from here on Triton always finds a tile for the wide instructions; below it may choose `mma`
DEVICES = {
    80: Device(163 * KIB, 0, ("mma",), "mma"),
    90: Device(227 * KIB, 0, ("mma", "wgmma"), "wgmma"),
    100: Device(227 * KIB, 512, ("mma", "tcgen05"), "tcgen05"),
}
