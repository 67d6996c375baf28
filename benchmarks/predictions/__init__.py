"""Predicted decode speed of well-known hybrids on GPUs that Stepforge has never run on: docs/predictions.md."""
