"""Debug modes: every launch checked for bounds and races. `mode.py` says when, `emit/checks.py` what is compiled."""
