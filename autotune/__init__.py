"""Tuning of kernel instances: search, proof, measurement and results. `python -m autotune`."""
