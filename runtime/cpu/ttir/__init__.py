"""TTIR: text parser, typed IR, verifier."""
