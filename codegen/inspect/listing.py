"""Instructions of a PTX or SASS text, each with the source line that it comes from."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

PTX_FILE = re.compile(r'\s*\.file\s+(\d+)\s+"([^"]*)"')
PTX_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)\s+\d+")
PTX_INSTRUCTION = re.compile(r"\s+(?:@!?%p\d+\s+)?([a-z][\w.:]*)(?:\s+([^;]*))?;")
SASS_LINE = re.compile(r'\s*//## File "([^"]*)", line (\d+)')
SASS_INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*([^;]*);")


@dataclass(frozen=True)
class Line:
    """A line of a source file; `file` is its name without folders."""

    file: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.number}"


@dataclass(frozen=True)
class Instruction:
    """A mnemonic with its modifiers, its operands as text, and the innermost source line; None if none is known."""

    op: str
    operands: str
    line: Line | None


def read_ptx(text: str) -> tuple[Instruction, ...]:
    """Every instruction of a PTX module, in order."""
    return tuple(_ptx(text.splitlines()))


def _ptx(lines: list[str]) -> Iterator[Instruction]:
    files = {found[1]: PurePosixPath(found[2]).name for found in map(PTX_FILE.match, lines) if found}
    here: Line | None = None
    for text in lines:
        if loc := PTX_LOC.match(text):
            here = _line(files.get(loc[1], ""), int(loc[2]))
        elif instruction := PTX_INSTRUCTION.match(text):
            yield Instruction(instruction[1], instruction[2] or "", here)


def read_sass(text: str) -> tuple[Instruction, ...]:
    """Every instruction of `nvdisasm -c -g`, in order."""
    return tuple(_sass(text.splitlines()))


def _sass(lines: list[str]) -> Iterator[Instruction]:
    here: Line | None = None
    for text in lines:
        if found := SASS_LINE.match(text):
            here = _line(PurePosixPath(found[1]).name, int(found[2]))
        elif instruction := SASS_INSTRUCTION.match(text):
            yield Instruction(instruction[1], instruction[2].strip(), here)


def _line(file: str, number: int) -> Line | None:
    """Line 0 is how compilers write that they do not know."""
    return Line(file, number) if number else None


def counted(instructions: Iterable[Instruction], pattern: str) -> Counter[str]:
    """How often each mnemonic that `pattern` matches from its start occurs."""
    wanted = re.compile(pattern)
    return Counter(instruction.op for instruction in instructions if wanted.match(instruction.op))


def matching(instructions: Iterable[Instruction], pattern: str) -> list[Instruction]:
    """The instructions whose mnemonic `pattern` matches from its start."""
    wanted = re.compile(pattern)
    return [instruction for instruction in instructions if wanted.match(instruction.op)]
