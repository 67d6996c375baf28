"""Where tuned results lie: a folder with a file each, which processes and machines may share, or one exported file."""

from __future__ import annotations

import json
import os
from pathlib import Path

from codegen.errors import TunedUnusable
from codegen.tuned import MEASURED, Identity, Result, data_folder
from codegen.tuned_format import RESULT_BYTES, read_result, write_result
from codegen.whole_file import write_whole
from dsl.files import read_regular

RESULTS = "results"  # below the data folder
EXPORT_BYTES = 256 << 20


class Results:
    """Results in a folder, one file each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, identity: Identity) -> Path:
        """Where the result of an identity lies, if there is one."""
        return self.folder / f"{identity.digest}.json"

    def find(self, wanted: Identity) -> Result | None:
        """The result of exactly this identity, whatever the name of a file says."""
        found = _read(self.path(wanted))
        return found if found and found.identity == wanted else None

    def all(self) -> list[Result]:
        """Every whole result, by kernel and target."""
        found = filter(None, map(_read, self.folder.glob("*.json")))
        return sorted(
            found, key=lambda result: (result.identity.target, result.identity.kernel, result.identity.digest)
        )

    def write(self, result: Result) -> None:
        """Store a result in place of an earlier one, whole or not at all. Raises TuneNotWritten."""
        write_whole(self.path(result.identity), write_result(result))


class ResultFile:
    """Results that somebody exported, perhaps on another machine: one JSON file."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises TunedUnusable."""
        self._results: list[Result] = []
        try:
            content = read_regular(path, EXPORT_BYTES)
            if len(content) > EXPORT_BYTES:
                raise ValueError(f"it has more than {EXPORT_BYTES} bytes")
            listed = _listed(json.loads(content))
        except OSError as error:
            raise TunedUnusable(path=path, detail=f"it cannot be read ({error.strerror or error})") from error
        except (ValueError, RecursionError) as error:
            raise TunedUnusable(path=path, detail=f"it is no file of `autotune export` ({error})") from error
        for number, item in enumerate(listed):
            try:
                result = read_result(item)
                write_result(result)  # what is too long for a file of its own could be imported, and never read again
            except (ValueError, RecursionError) as error:
                detail = f"result {number + 1} of {len(listed)} is none that `autotune export` writes ({error})"
                raise TunedUnusable(path=path, detail=detail) from error
            self._results.append(result)

    def all(self) -> list[Result]:
        """Every result, in the file's order."""
        return self._results

    def find(self, wanted: Identity) -> Result | None:
        """The result of this identity, else one of the same kernel on another machine or workload.

        What was measured goes before what was predicted, even here.
        """
        like = [result for result in self._results if result.identity.like(wanted)]
        return min(like, key=lambda result: (result.kind != MEASURED, result.identity != wanted), default=None)


def opened(path: Path | None) -> Results | ResultFile:
    """Results of a folder, or of `results` below it, or of an exported file; without a path, those of this user.

    Raises TunedUnusable.
    """
    if path is not None and not os.path.isdir(path):
        return ResultFile(path)
    inner = (path or data_folder()) / RESULTS
    return Results(inner if path is None or inner.is_dir() else path)


def export(results: list[Result]) -> str:
    """The text of a file that ResultFile reads."""
    return json.dumps({"results": [result.plain() for result in results]}, indent=1, sort_keys=True) + "\n"


def _listed(data: object) -> list[object]:
    found = data.get("results") if isinstance(data, dict) else None
    if not isinstance(found, list):
        raise ValueError("it has no list of results")
    return found


def _read(path: Path) -> Result | None:
    """A result, or None if there is none or it is damaged: the kernel then runs untuned."""
    try:
        return read_result(json.loads(read_regular(path, RESULT_BYTES)))
    except (OSError, ValueError, RecursionError):
        return None
