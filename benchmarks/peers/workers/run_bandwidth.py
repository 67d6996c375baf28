"""How fast this machine reads memory, in a process of its own: run_bandwidth.py THREADS."""

from __future__ import annotations

import sys
from typing import Any

from serve import Generate, serve

from runtime.bandwidth import read_bandwidth

SECONDS = 0.3


def main(threads: int) -> None:
    """Answer `bandwidth` of a buffer of `bytes` with bytes per second."""

    def refuse(asked: list[list[int]], new: int) -> tuple[float, float, int]:
        raise ValueError("this worker generates nothing")

    def load() -> tuple[Generate, dict[str, Any]]:
        return refuse, {}

    def bandwidth(ask: dict[str, Any]) -> dict[str, float]:
        return {"bytes_per_second": read_bandwidth(ask["bytes"], threads, SECONDS)}

    serve(load, bandwidth=bandwidth)


if __name__ == "__main__":
    main(int(sys.argv[1]))
