"""Data-sheet figures of NVIDIA's data-centre GPUs: dense rates (without structured sparsity), SXM modules."""

from __future__ import annotations

from dataclasses import dataclass

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Accelerator:
    """One GPU. bandwidth: bytes per second of its memory; int8, bf16 (tensor cores), fp32: operations per second.

    memory: bytes. multiprocessors: that the module has enabled. source: document of the figures.
    """

    name: str
    target: str
    bandwidth: float
    int8: float
    bf16: float
    fp32: float
    memory: float
    multiprocessors: int
    source: str


ACCELERATORS = {
    accelerator.name: accelerator
    for accelerator in (
        Accelerator(
            "A100",
            "cuda:80",
            bandwidth=2.039 * TERA,
            int8=624 * TERA,
            bf16=312 * TERA,
            fp32=19.5 * TERA,
            memory=80 * GIGA,
            multiprocessors=108,
            source="NVIDIA A100 data sheet, A100 80GB SXM; multiprocessors: Ampere architecture white paper",
        ),
        Accelerator(
            "H100",
            "cuda:90",
            bandwidth=3.35 * TERA,
            int8=1978.9 * TERA,
            bf16=989.4 * TERA,
            fp32=66.9 * TERA,
            memory=80 * GIGA,
            multiprocessors=132,
            source="NVIDIA H100 data sheet, H100 SXM; multiprocessors: Hopper architecture white paper",
        ),
        Accelerator(
            "H200",
            "cuda:90",
            bandwidth=4.8 * TERA,
            int8=1978.9 * TERA,
            bf16=989.4 * TERA,
            fp32=66.9 * TERA,
            memory=141 * GIGA,
            multiprocessors=132,
            source="NVIDIA H200 data sheet, H200 SXM; the chip is that of the H100",
        ),
        Accelerator(
            "B200",
            "cuda:100",
            bandwidth=8.0 * TERA,
            int8=4500 * TERA,
            bf16=2250 * TERA,
            fp32=80 * TERA,
            memory=180 * GIGA,
            multiprocessors=148,
            source="NVIDIA Blackwell technical brief, HGX B200; memory of a DGX B200; multiprocessors: as CUDA reports",
        ),
    )
}


def of_target(target: str) -> tuple[Accelerator, ...]:
    """The GPUs that run a target's kernels; none of `cpu`."""
    return tuple(accelerator for accelerator in ACCELERATORS.values() if accelerator.target == target)


def by_driver_name(target: str, name: str) -> Accelerator:
    """That of a target which the driver's name, as `NVIDIA H200`, speaks of; the first one if it speaks of none."""
    every = of_target(target)
    return next((accelerator for accelerator in every if accelerator.name in name), every[0])
