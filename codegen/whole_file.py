"""Files that are there whole or not at all, whoever else writes the same one, on this machine or another."""

from __future__ import annotations

import secrets
from pathlib import Path

from codegen.errors import TuneNotWritten


def write_whole(path: Path, text: str, make_folder: bool = True) -> None:
    """Write a file of autotune, in place of an earlier one. Raises TuneNotWritten."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except (OSError, ValueError) as error:  # ValueError: no file can have this name
        raise TuneNotWritten(path=path, detail=getattr(error, "strerror", None) or str(error)) from error
