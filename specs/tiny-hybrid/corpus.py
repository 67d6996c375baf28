"""The training text: Python sources of the running interpreter's standard library, as bytes.

A file belongs to the held-out part if the first byte of the sha256 of its content is below `HELD_OUT_BELOW`: the split
is by file, equal files fall on the same side, and no held-out file is ever trained on.
"""

from __future__ import annotations

import hashlib
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from dsl.spec import TokenizerSpec

SKIPPED_FOLDERS = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
HELD_OUT_BELOW = 13  # of 256: about 5 % of the files
BYTES = torch.int16  # wide enough for 256 bytes and 64 specials


@dataclass(frozen=True)
class Corpus:
    """Token streams (bos, bytes of a file, eos, bos, ...) of the two parts, and what they were made from."""

    train: Tensor  # [n] int16
    held_out: Tensor  # [m] int16
    num_files: tuple[int, int]
    sha256: str  # of the sorted sha256 of all files


def default_folder() -> Path:
    """The standard library of the running interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def source_files(folder: Path) -> list[Path]:
    """The *.py files under a folder, in order of their paths, without installed packages and tests."""
    files = (path for path in folder.rglob("*.py") if path.is_file())
    return sorted(path for path in files if not SKIPPED_FOLDERS.intersection(path.relative_to(folder).parts))


def load_corpus(folder: Path, tokenizer: TokenizerSpec) -> Corpus:
    """Read and split the files under a folder. Raises ValueError if a part stays empty."""
    bos, eos = tokenizer.special_id("bos"), tokenizer.special_id("eos")
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    digests = []
    for path in source_files(folder):
        content = path.read_bytes()
        digest = hashlib.sha256(content)
        digests.append(digest.hexdigest())
        tokens = [bos, *content, eos]
        parts[digest.digest()[0] < HELD_OUT_BELOW].append(torch.tensor(tokens, dtype=BYTES))
    if not all(parts):
        raise ValueError(f"{folder}: no *.py files for training, or none held out")
    sha256 = hashlib.sha256("\n".join(sorted(digests)).encode()).hexdigest()
    return Corpus(torch.cat(parts[0]), torch.cat(parts[1]), (len(parts[0]), len(parts[1])), sha256)


def crops(stream: Tensor, count: int, length: int, bos: int, generator: torch.Generator) -> Tensor:
    """Random windows of a stream, [count, length] int64; in every other one bos replaces the first token."""
    starts = torch.randint(len(stream) - length, (count,), generator=generator)
    windows = torch.stack([stream[start : start + length] for start in starts]).long()
    windows[::2, 0] = bos
    return windows
