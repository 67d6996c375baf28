"""The models of the comparison: our spec, and the files that peers read, by name in one folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .figures import Figure

ROOT = Path(__file__).resolve().parents[2]
LLAMA_CPP, VLLM, OPENVINO, TRANSFORMERS = "llama.cpp", "vllm", "openvino", "transformers"
PEERS = (LLAMA_CPP, VLLM, OPENVINO, TRANSFORMERS)
SHARE, BEST = "share", "best peer"


@dataclass(frozen=True)
class Required:
    """The median that is asked for: of our share of the bandwidth, or of how many times as fast we are.

    of: SHARE, a peer, or BEST: the fastest of those that were measured.
    """

    figure: Figure
    of: str
    least: float


@dataclass(frozen=True)
class Model:
    """name: of its spec in specs/. files: name of a Hugging Face folder FILES and of FILES.bf16.gguf, FILES.f16.gguf.

    The two have the same shape, not the same weights: ours are random.
    """

    name: str
    files: str
    required: tuple[Required, ...]
    openvino: bool = False

    @property
    def spec(self) -> Path:
        """The YAML spec."""
        return ROOT / "specs" / f"{self.name}.yaml"

    def file(self, peer: str, folder: Path) -> Path | None:
        """What a peer reads, or None if it has no reader for this model."""
        if peer == OPENVINO:
            return folder / f"{self.files}.f16.gguf" if self.openvino else None
        return folder / (f"{self.files}.bf16.gguf" if peer == LLAMA_CPP else self.files)


def _required(llama_cpp: float, prefill: float) -> tuple[Required, ...]:
    return (
        Required(Figure.DECODE, SHARE, 0.88),
        Required(Figure.DECODE, LLAMA_CPP, llama_cpp),
        Required(Figure.DECODE, VLLM, 1.9),
        Required(Figure.PREFILL, BEST, prefill),
        Required(Figure.FIRST_TOKEN, BEST, 1.0),
        Required(Figure.BATCH, BEST, 1.2),
    )


MODELS = {
    model.name: model
    for model in (
        Model("smollm2-135m", "smollm2", _required(1.05, 1.0), openvino=True),
        Model("mamba2-130m", "mamba2", _required(1.4, 1.2)),
        Model("granite-hybrid", "granite_h", _required(1.3, 1.2)),
    )
}
