"""KV pages as the plan lays them out: read and cleared entry by entry, as `rope_append` writes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from codegen.lower import lower
from runtime.layouts import clear_entries, read_entries
from runtime.plan import Buffer
from tests.cpu.engine.toys import same_bits, toy_spec

HEADS, D, PAGE = 3, 8, 16


def offset(layout: str, entry: int, d: int) -> int:
    """Where `rope_append` puts element d of an entry, within the page of a head."""
    if layout == "k_pages":
        return (d // 2) * (2 * PAGE) + entry * 2 + d % 2
    return (entry // 2) * (2 * D) + d * 2 + entry % 2


def kv_buffer(layout: str) -> Buffer:
    return Buffer("some_cache", (5, HEADS, D * PAGE), "bf16", "kv", "zero", layout, (), 0.0)


def random_pages(count: int) -> torch.Tensor:
    return torch.randn((count, HEADS, D * PAGE), generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)


def test_plans_name_the_layout_of_their_caches():
    plan = lower(toy_spec(), "cpu")
    layouts = {name: plan.buffer(name).layout for name in plan.kv_buffers}
    assert layouts and all(layout == f"{name[-7]}_pages" for name, layout in layouts.items())


@pytest.mark.parametrize("layout", ["k_pages", "v_pages"])
def test_entries_are_read_where_the_kernel_wrote_them(layout):
    pages = random_pages(2)
    entries = read_entries(kv_buffer(layout), pages, PAGE)
    assert entries.shape == (2 * PAGE, HEADS, D)
    for entry in range(2 * PAGE):
        at = [offset(layout, entry % PAGE, d) for d in range(D)]
        assert same_bits(entries[entry], pages[entry // PAGE][:, at])
    assert read_entries(kv_buffer(layout), pages[:0], PAGE).shape == (0, HEADS, D)


@pytest.mark.parametrize("first", [0, 1, 7, 8, PAGE - 1, PAGE])
@pytest.mark.parametrize("layout", ["k_pages", "v_pages"])
def test_entries_are_cleared_from_the_first_on_and_no_others(layout, first):
    pages = random_pages(3)
    pages[1] = float("nan")
    before = pages.clone()
    clear_entries(kv_buffer(layout), pages[1], first, PAGE)
    entries = read_entries(kv_buffer(layout), pages[1:2], PAGE)
    assert not entries[first:].view(torch.int16).any()
    assert entries[:first].isnan().all()
    assert same_bits(pages[[0, 2]], before[[0, 2]])


def test_a_buffer_of_another_layout_is_refused():
    buffer, pages = replace(kv_buffer("k_pages"), layout="plain"), random_pages(1)
    for call in (lambda: clear_entries(buffer, pages[0], 0, PAGE), lambda: read_entries(buffer, pages, PAGE)):
        with pytest.raises(ValueError, match="some_cache has the layout plain"):
            call()
