"""What the tensors of a program hold before the launch: plain numbers, special values, random bits."""

from __future__ import annotations

import numpy as np
import torch

from tests.cpu.fuzz.bounds import round_to
from tests.cpu.fuzz.dtypes import BF16, DType
from tests.cpu.fuzz.oracle_elementwise import bits_of, from_bits
from tests.cpu.fuzz.program import Buffer, Program

#: Elements in front of and behind every tensor that no kernel may touch, nor let its result depend on.
GUARD = 64


def fill(program: Program, buffer: Buffer) -> np.ndarray:
    """Storage of `buffer.count` elements. Depends on the program's seed, its index and the buffer's name alone.

    fill: "plain" (numbers around 1), "special" (also NaN, infinities, zeros, denormals, extremes), "bits" (any bits),
    "small" (integers 0 .. 7), "ones", "poison" (an output nobody has written)."""
    number = int.from_bytes(buffer.name.encode(), "little")
    rng = np.random.default_rng([program.seed & 0xFFFFFFFF, program.index, number])
    dtype, count = buffer.dtype, buffer.count
    if buffer.fill == "poison":
        return poison(dtype, count)
    if buffer.fill == "ones":
        return np.ones(count, dtype.storage)
    if dtype.kind == "bool":
        return rng.integers(0, 2, count).astype(np.bool_)
    if buffer.fill == "small":
        return rng.integers(0, 8, count).astype(dtype.storage)
    if buffer.fill == "bits":
        return from_bits(rng.integers(0, 1 << dtype.bits, count, dtype=np.uint64).astype(f"u{dtype.bits // 8}"), dtype)
    values = _floats(rng, dtype, count) if dtype.is_float else _integers(rng, dtype, count)
    if buffer.fill == "special":
        listed = special_values(dtype)
        special = round_to(dtype, np.array(listed, np.float64)) if dtype.is_float else np.array(listed, dtype.storage)
        chosen = rng.random(count) < 0.3
        values = np.where(chosen, special[rng.integers(0, len(special), count)], values)
    return values


def _floats(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    scale = np.exp2(rng.integers(-3, 3, count))
    values = rng.standard_normal(count) * scale
    # some half-way points of bf16, f16 and f32, and their neighbours: there a conversion shows how it rounds
    bits = rng.choice([7, 10, 23], count)
    halfway = 1 + (rng.integers(0, 1 << bits) + 0.5) / np.exp2(bits)
    halfway += rng.integers(-1, 2, count) * np.exp2(1.0 - dtype.precision)
    return round_to(dtype, np.where(rng.random(count) < 0.2, halfway * scale, values))


def _integers(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    small = rng.integers(max(dtype.low, -40), 41, count)
    wide = rng.integers(dtype.low, dtype.high, count, dtype=dtype.storage, endpoint=True)
    return np.where(rng.random(count) < 0.5, small.astype(dtype.storage), wide)


def special_values(dtype: DType) -> list[float] | list[int]:
    """Floats: half-way points of narrower types, exactly and just beside them, and everything IEEE 754 treats apart."""
    if dtype.is_float:
        tiny, least = float(dtype.step * 2 ** (dtype.precision - 1)), dtype.step
        places = ((8, 23), (11, 23), (8, 40), (11, 40), (24, 50))
        ties = [1 + 2.0**-bits + sign * 2.0**-fine for bits, fine in places for sign in (-1, 0, 1)]
        return [
            *ties, np.nan, np.nan, np.nan, 0.0, -0.0, np.inf, -np.inf, 1.0, -1.0, 0.5, -0.5, 2.5, -2.5, 1.5,
            dtype.largest, -dtype.largest, tiny, -tiny, least, -least, 3 * least, tiny - least,
            float(2**dtype.precision), 1 + 2.0 ** (1 - dtype.precision),
        ]  # fmt: skip
    # half-way points of bf16 and f32, and their neighbours
    places = ((1 << 30) + (1 << 22), (1 << 62) + (1 << 54), (1 << 62) + (1 << 38), (1 << 25) + (1 << 1))
    ties = [place + step for place in places for step in (-1, 0, 1) if place < dtype.high]
    extremes = [dtype.low, dtype.low + 1, dtype.high, dtype.high - 1, dtype.high // 2 + 1, dtype.high // 2]
    return [0, 1, 2, *extremes, *ties]


def poison(dtype: DType, count: int) -> np.ndarray:
    """A pattern no operation makes by chance."""
    if dtype.kind == "bool":
        return np.ones(count, np.bool_)
    pattern = int.from_bytes(b"\x5a" * (dtype.bits // 8), "little")
    return from_bits(np.full(count, pattern, f"u{dtype.bits // 8}"), dtype)


def tensor(dtype: DType, data: np.ndarray) -> torch.Tensor:
    """A tensor with these elements between two guards of poison; the whole is `tensor.guarded`."""
    whole = np.concatenate([poison(dtype, GUARD), data, poison(dtype, GUARD)])
    if dtype is BF16:
        guarded = torch.from_numpy(bits_of(whole, dtype).view(np.int16)).view(torch.bfloat16)
    else:
        guarded = torch.from_numpy(whole.copy())
    return guarded[GUARD : GUARD + len(data)]


def elements(dtype: DType, values: torch.Tensor) -> np.ndarray:
    """Storage of a tensor from `tensor`, guards included."""
    whole = values.as_strided((len(values) + 2 * GUARD,), (1,), values.storage_offset() - GUARD)
    if dtype is BF16:
        return from_bits(whole.view(torch.int16).numpy().view(np.uint16), dtype)
    return whole.numpy()
