"""A row's attention has the same bits in every tile, and those of a kernel that takes one row at a time."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass, field
from random import Random

import pytest
import torch

from codegen.lower import lower
from codegen.lower.targets import next_power_of_two, resolve_target
from codegen.plan import Kernel
from codegen.render import render_kernel
from tests.cpu.engine.attention_oracle import attention_by_row
from tests.cpu.engine.toys import toy_spec

SLOTS, PAGES_PER_SLOT = 3, 6
UNTOUCHED = 7.0
TILES = (1, 2, 4, 5, 8, 10, 16)
#: (heads, kv heads, head dim, page)
SHAPES = [(4, 2, 16, 8), (3, 1, 24, 16), (2, 2, 32, 32), (8, 1, 8, 16)]


@dataclass
class Case:
    """Buffers of one launch; NaN wherever no row may look. rows: of each seat, (slot or -1, position)."""

    shape: tuple[int, int, int, int]
    rows: list[list[tuple[int, int]]]
    seed: int = 0
    spread: float = 1.0
    tensors: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        heads, kv_heads, dim, page = self.shape
        block = 1 << (dim - 1).bit_length()
        draw = torch.Generator().manual_seed(self.seed)
        flat = [row for rows in self.rows for row in rows]
        table = torch.randperm(SLOTS * PAGES_PER_SLOT + 2, generator=draw)[: SLOTS * PAGES_PER_SLOT]
        table = table.to(torch.int32).reshape(SLOTS, PAGES_PER_SLOT)
        k, v = (torch.full((SLOTS * PAGES_PER_SLOT + 2, kv_heads, page, block), torch.nan) for _ in "kv")
        for slot in range(SLOTS):
            for position in range(max((p for s, p in flat if s == slot), default=-1) + 1):
                at = int(table[slot, position // page]), slice(None), position % page
                k[at] = torch.randn(kv_heads, block, generator=draw) * self.spread
                v[at] = torch.randn(kv_heads, block, generator=draw)
        q = torch.randn(len(flat), heads, block, generator=draw) * self.spread
        q[[slot < 0 for slot, _ in flat]] = torch.nan
        self.tensors = {
            "row_slot": torch.tensor([slot for slot, _ in flat], dtype=torch.int32),
            "row_pos": torch.tensor([position for _, position in flat], dtype=torch.int32),
            "row_first": torch.tensor([sum(map(len, self.rows[:i])) for i in range(len(self.rows))], dtype=torch.int32),
            "row_count": torch.tensor([len(rows) for rows in self.rows], dtype=torch.int32),
            "q": q.bfloat16(),
            "page_table": table,
            "k_cache": k.bfloat16().unflatten(3, (block // 2, 2)).transpose(2, 3).contiguous(),
            "v_cache": v.bfloat16().unflatten(2, (page // 2, 2)).transpose(3, 4).contiguous(),
        }

    @property
    def constants(self) -> dict[str, float]:
        heads, kv_heads, dim, page = self.shape
        return {
            "HEADS": heads,
            "KV_HEADS": kv_heads,
            "QUERIES_PER_KV": heads // kv_heads,
            "D": dim,
            "BLOCK_D": 1 << (dim - 1).bit_length(),
            "PAGE": page,
            "PAGES_PER_SLOT": PAGES_PER_SLOT,
            "SCALE_LOG2": dim**-0.5 * math.log2(math.e),
            "MIN_DOT": 1,
        }

    def by_row(self) -> torch.Tensor:
        context = self._context()
        tensors = {name: tensor for name, tensor in self.tensors.items() if name not in ("row_first", "row_count")}
        constants = {name: value for name, value in self.constants.items() if name != "MIN_DOT"}
        group = 1 << (self.constants["QUERIES_PER_KV"] - 1).bit_length()
        attention_by_row[(len(context), self.shape[1])](**tensors, context=context, **constants, BLOCK_G=group)
        return context

    def by_tile(self, kernel, tile: int) -> torch.Tensor:
        context, size = self._context(), max(map(len, self.rows))
        grid = (len(self.rows), -(-size // tile), self.shape[1])
        kernel[grid](**self.tensors, context=context, BLOCK_M=tile)
        return context

    def _context(self) -> torch.Tensor:
        return torch.full((len(self.tensors["row_slot"]), self.shape[0] * self.shape[2]), UNTOUCHED).bfloat16()


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def shape(request):
    return request.param


@pytest.fixture(scope="module")
def kernel(shape, tmp_path_factory):
    """The template's kernel for a shape."""
    name = "attention_{}x{}x{}".format(*shape[:3])
    instance = Kernel(name, "kernels/attention.py.j2", tuple(Case(shape, [[(0, 0)]]).constants.items()), TILES, 1)
    path = tmp_path_factory.mktemp("kernel") / f"{name}.py"
    path.write_text(render_kernel(lower(toy_spec(), "cpu"), instance, "pytest"))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def bits(context: torch.Tensor) -> torch.Tensor:
    return context.view(torch.int16)


def draw_rows(rng: Random, limit: int) -> list[list[tuple[int, int]]]:
    """Rows of a launch: a step's, an accepted prefix, or chunks whose first row may be empty; stale positions."""
    sizes = rng.choice([[rng.randint(1, 20)], [rng.randint(1, 8)] * SLOTS, [rng.randint(0, 12) for _ in range(SLOTS)]])
    stale = rng.choice((0, 10**6))
    rows = []
    for slot, size in zip(rng.sample(range(SLOTS), len(sizes)), sizes, strict=True):
        start = rng.choice((0, rng.randint(0, limit - size)))
        first, last = rng.choice([(0, size), (0, rng.randint(0, size)), (1, size), (0, 0)])
        rows.append([(slot, start + i) if first <= i < last else (-1, stale) for i in range(size)])
    return rows


def test_every_tile_gives_the_bits_of_single_rows(shape, kernel) -> None:
    rng = Random(str(shape))
    for seed in range(30):
        spread = rng.choice((0.1, 1.0, 10.0))
        case = Case(shape, draw_rows(rng, PAGES_PER_SLOT * shape[3]), seed, spread)
        expected = case.by_row()
        assert not expected.isnan().any()
        for tile in TILES:
            assert torch.equal(bits(case.by_tile(kernel, tile)), bits(expected)), (seed, tile, case.rows)


def test_rows_of_every_context_length(shape, kernel) -> None:
    """Each row of a chunk from position 0 on equals the row alone."""
    case = Case(shape, [[(1, position) for position in range(PAGES_PER_SLOT * shape[3])]])
    expected = case.by_row()
    for tile in TILES:
        assert torch.equal(bits(case.by_tile(kernel, tile)), bits(expected)), tile


def test_the_sign_of_a_zero_knows_no_tile(shape, kernel) -> None:
    """A sum that a far larger score scales down to -0.0 comes out as 0.0, whatever the rows after it hold."""
    page = shape[3]
    case = Case(shape, [[(0, 2 * page - 1 + i) for i in range(4)]])
    k, v, pages = case.tensors["k_cache"], case.tensors["v_cache"], case.tensors["page_table"][0].tolist()
    case.tensors["q"].fill_(8.0)
    k[pages[:3]] = 0.0
    k[pages[1], :, :, 0] = 64.0
    v[pages[:2]] = -1.0
    v[pages[1], :, 0, :, 0] = -0.0
    v[pages[2]] = 1.0
    expected = case.by_row()
    assert bits(expected[0]).unique().tolist() == [-0x8000]
    for tile in TILES:
        assert torch.equal(bits(case.by_tile(kernel, tile)), bits(expected + 0.0)), tile


@pytest.mark.parametrize("queries", [1, 2, 3, 8, 16, 20])
def test_the_slot_tiles_of_targets(queries: int) -> None:
    """A CPU has a tile for every number of rows; a GPU one, so that all its dots have one layout."""
    cpu, gpu = (resolve_target(name).slot_tiles(queries) for name in ("cpu", "cuda:90"))
    assert cpu[0] == 1
    assert cpu[-1] * queries <= max(32, queries)
    assert len({next_power_of_two(rows * queries) for rows in cpu}) == len(cpu)  # no two in one dot
    assert len(gpu) == 1
    assert gpu[0] * queries <= max(16, queries) and next_power_of_two(gpu[0] * queries) >= 16
