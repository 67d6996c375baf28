"""What may lie where a file is expected. Reading any of these must not wait and must not take memory."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

Make = Callable[[Path], None]
SPARSE = 1 << 36  # bytes


def fifo(path: Path) -> None:
    """A FIFO that nobody writes to: opening it waits forever."""
    os.mkfifo(path)


def folder(path: Path) -> None:
    """A folder."""
    path.mkdir()


def zeros(path: Path) -> None:
    """An endless device."""
    path.symlink_to("/dev/zero")


def full(path: Path) -> None:
    """A device."""
    path.symlink_to("/dev/full")


def loop(path: Path) -> None:
    """A link to itself."""
    path.symlink_to(path)


def dangling(path: Path) -> None:
    """A link to nothing."""
    path.symlink_to(path.with_name("nothing"))


def unix_socket(path: Path) -> None:
    """A socket."""
    with socket.socket(socket.AF_UNIX) as end:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        try:
            end.bind(path.name)
        finally:
            os.chdir(here)


def sparse(path: Path) -> None:
    """A file of 64 GiB that takes no room."""
    with path.open("wb") as file:
        file.truncate(SPARSE)


PLACES: dict[str, Make] = {
    "a fifo": fifo,
    "a folder": folder,
    "an endless device": zeros,
    "a device": full,
    "a link to itself": loop,
    "a link to nothing": dangling,
    "a socket": unix_socket,
    "a huge sparse file": sparse,
}
