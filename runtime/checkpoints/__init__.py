"""Checkpoints: which prefixes can be resumed from, where their bytes are, and why. See docs/checkpoints.md."""
