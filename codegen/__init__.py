"""Compile a model spec into a package of specialised kernels and a straight-line decode step."""

__version__ = "0.1.0"
