"""Decode, prefill and first-token speed of Stepforge and of the peers that are installed, in one interleaved run.

See README.md in this folder, and `python -m benchmarks.peers --help`.
"""
