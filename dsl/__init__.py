"""The language of Stepforge: what a model spec may say, and how it is read."""

from dsl.errors import InvalidSpec, SpecError
from dsl.loader import load_spec, parse_spec
from dsl.spec import ModelSpec, spec_sha256

__all__ = ["InvalidSpec", "ModelSpec", "SpecError", "load_spec", "parse_spec", "spec_sha256"]
