"""The Mamba-2 state update of one token per slot."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .measure import Contest

REQUIRED = 1.5
P, N = 64, 128
#: (slots, heads): 24 heads for 130M parameters, 64 for 1.3B.
SIZES = ((1, 24), (8, 24), (1, 64), (8, 64))


@triton.jit
def state_update(state, x, dt, dt_bias, a_log, b, c, d, z, y, H: tl.constexpr, P: tl.constexpr, N: tl.constexpr):
    """One program: one head of one slot. S = exp(dt A) S + dt x B^T, y = (S C + D x) silu(z).

    state [slots, H, P, N] fp32, changed in place; x, z, y [slots, H, P] and b, c [slots, N] bf16; dt [slots, H] and the
    vectors [H] fp32. Source: mamba_ssm, selective_state_update."""
    h, slot = tl.program_id(0), tl.program_id(1)
    o_p, o_n = tl.arange(0, P), tl.arange(0, N)
    step = tl.load(dt + slot * H + h) + tl.load(dt_bias + h)
    step = tl.where(step <= 20.0, tl.log(1.0 + tl.exp(step)), step)
    decay = tl.exp(step * -tl.exp(tl.load(a_log + h)))
    row = (slot * H + h) * P + o_p
    b_x = tl.load(x + row).to(tl.float32)
    b_z = tl.load(z + row).to(tl.float32)
    b_b = tl.load(b + slot * N + o_n).to(tl.float32)
    b_c = tl.load(c + slot * N + o_n).to(tl.float32)
    p_state = state + row[:, None] * N + o_n[None, :]
    s = tl.load(p_state) * decay + (step * b_x)[:, None] * b_b[None, :]
    tl.store(p_state, s)
    b_y = tl.sum(s * b_c[None, :], axis=1) + tl.load(d + h) * b_x
    tl.store(y + row, b_y * b_z * tl.sigmoid(b_z))


def eager(state, x, dt, dt_bias, a_log, b, c, d, z):  # type: ignore[no-untyped-def]
    """The same in plain PyTorch."""
    step = torch.nn.functional.softplus(dt + dt_bias)
    decay = torch.exp(step * -torch.exp(a_log))
    xf = x.float()
    state.mul_(decay[..., None, None]).add_((step[..., None] * xf)[..., None] * b.float()[:, None, None, :])
    y = torch.matmul(state, c.float()[:, None, :, None])[..., 0] + d[:, None] * xf
    return (y * torch.nn.functional.silu(z.float())).bfloat16()


def contests() -> Iterator[Contest]:
    """Every size of SIZES."""
    for slots, heads in SIZES:
        yield _contest(slots, heads)


def _contest(slots: int, heads: int) -> Contest:
    x, z = (torch.randn(slots, heads, P).bfloat16() for _ in range(2))
    b, c = (torch.randn(slots, N).bfloat16() for _ in range(2))
    dt, dt_bias, a_log, d = torch.randn(slots, heads), *(torch.randn(heads) for _ in range(3))
    mine, other = (torch.zeros(slots, heads, P, N) for _ in range(2))
    y = torch.empty_like(x)

    def ours() -> None:
        state_update[(heads, slots)](mine, x, dt, dt_bias, a_log, b, c, d, z, y, H=heads, P=P, N=N)

    def theirs() -> torch.Tensor:
        return eager(other, x, dt, dt_bias, a_log, b, c, d, z)

    def check() -> None:
        ours()
        torch.testing.assert_close(y, theirs(), atol=5e-2, rtol=5e-2)
        torch.testing.assert_close(mine, other)

    return Contest("ssm update", f"{slots} slots, {heads} heads, {P}x{N}", REQUIRED, ours, check, theirs=theirs)
