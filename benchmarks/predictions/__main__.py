"""Print docs/predictions.md."""

from .page import page

print(page(), end="")
