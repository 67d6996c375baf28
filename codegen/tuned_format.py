"""A tuned result as JSON. It may come from anybody: every field that is kept has been found of its type and range."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic asks for this one before Python 3.12

from codegen.tunables import Value
from codegen.tuned import FORMAT, FREE, KEEP, MEASURED, PREDICTED, Identity, Result
from dsl.errors import cut, printable

RESULT_BYTES = 8 << 20
LONGEST_NAME, LONGEST_TEXT = 300, 5000
LONGEST_STEP = 40  # of the way to a mistake, which is made of a stranger's words
DAY = 86400.0  # seconds: no launch takes longer


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it holds characters that cannot be printed")
    return text


Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_printable)]
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
Integer = Annotated[int, Field(gt=-(1 << 63), lt=1 << 63)]
Ratio = Annotated[float, Field(gt=0, lt=1e6)]
Seconds = Annotated[float, Field(ge=1e-12, le=DAY)]
Amount = Annotated[float, Field(ge=0, lt=1e30)]
Values = dict[Name, Integer | list[Integer]]
Pair = Annotated[list[Name | Integer], Field(min_length=2, max_length=2)]
TYPED = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)  # what nobody here reads is left out


class _Identity(TypedDict):
    __pydantic_config__ = TYPED  # type: ignore[misc]
    kernel: Name
    source: Name
    shape: list[Pair]
    workload: list[Pair]
    target: Name
    numerics: Literal["keep", "free"]
    device: Name
    toolchain: Name


class _Scene(TypedDict):
    """Of a launch in one scene. bound, occupancy: of a prediction."""

    __pydantic_config__ = TYPED  # type: ignore[misc]
    tuned: Seconds
    untuned: Seconds
    ratio: Ratio
    bound: NotRequired[Name]
    occupancy: NotRequired[Amount]


class _Bound(TypedDict):
    __pydantic_config__ = TYPED  # type: ignore[misc]
    bytes: Whole
    flops: Whole
    seconds: Annotated[float, Field(ge=0, le=DAY)]
    bound: Name


class _Trial(TypedDict):
    __pydantic_config__ = TYPED  # type: ignore[misc]
    values: Values
    state: Literal["complete", "slow", "rejected"]
    ratio: Ratio | None
    why: Text


class _Detail(TypedDict, total=False):
    """How a result was found: all of it for people. device: that a prediction is for."""

    __pydantic_config__ = TYPED  # type: ignore[misc]
    scenes: dict[Name, _Scene]
    roofline: dict[Name, _Bound]
    trials: list[_Trial]
    resources: list[dict[Name, Whole]]
    noise: Amount
    bandwidth: Amount
    peak: Amount
    launches: Whole
    space: Whole
    candidates: Whole
    explored: Whole
    device: Name


class _Result(TypedDict):
    __pydantic_config__ = TYPED  # type: ignore[misc]
    format: Literal[1]
    identity: _Identity
    values: Values
    ratio: Ratio
    kind: Literal["measured", "predicted"]
    detail: _Detail


assert (KEEP, FREE, MEASURED, PREDICTED, FORMAT) == ("keep", "free", "measured", "predicted", 1)
_RESULT = TypeAdapter(_Result)


def read_result(data: Any) -> Result:
    """A result out of JSON. Raises ValueError, which names the field, if it is none."""
    try:
        found = _RESULT.validate_python(data)
    except ValidationError as error:
        raise ValueError(_told(error)) from None
    named = found["identity"]
    words = (named["target"], named["numerics"], named["device"], named["toolchain"])
    identity = Identity(named["kernel"], named["source"], _pairs(named["shape"]), _pairs(named["workload"]), *words)
    if (found["kind"] == PREDICTED) != (identity.device == PREDICTED):
        raise ValueError(f"identity.device: {identity.device!r} is no device of a result that is {found['kind']}")
    values: Mapping[str, Value] = {name: _value(value) for name, value in found["values"].items()}
    return Result(identity, values, found["ratio"], found["kind"], dict(found["detail"]))


def write_result(result: Result) -> str:
    """The text of a file. Raises ValueError if nobody could read it again."""
    data = result.plain()
    read_result(json.loads(json.dumps(data)))
    text = json.dumps(data, indent=1, sort_keys=True) + "\n"
    if len(text) > RESULT_BYTES:
        raise ValueError(f"it has {len(text)} bytes, a result has at most {RESULT_BYTES}")
    return text


def _pairs(found: list[list[str | int]]) -> tuple[tuple[str, str | int], ...]:
    if not all(isinstance(name, str) for name, _ in found):
        raise ValueError("identity: a number is no name of a constant")
    return tuple((str(name), value) for name, value in found)


def _value(value: int | list[int]) -> Value:
    return tuple(value) if isinstance(value, list) else value


def _told(error: ValidationError) -> str:
    """The first mistake: where it is, and what is allowed there."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(cut(str(step), LONGEST_STEP) for step in first["loc"][:6])
    return printable(f"{place}: {first['msg']}" if place else str(first["msg"]))
