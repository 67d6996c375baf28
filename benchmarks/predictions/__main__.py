"""Print docs/predictions.md: tokens/s of well-known hybrids on GPUs, with what is assumed.

python -m benchmarks.predictions > docs/predictions.md
"""

from __future__ import annotations

import argparse

from .page import page

argparse.ArgumentParser(
    "benchmarks.predictions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
).parse_args()
print(page(), end="")
