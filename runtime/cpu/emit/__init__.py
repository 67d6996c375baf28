"""Emission of C from a verified and placed function."""
