"""Makes `tests.strategies` importable however pytest is started, and loads its hypothesis profiles."""

import sys
from pathlib import Path

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

import tests.strategies  # noqa: E402, F401
