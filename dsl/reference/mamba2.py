"""Mamba-2 in two forms that must agree: a loop over tokens, and chunks of matmuls (SSD).

Source: arXiv 2405.21060, equation 2 of section 2 (the recurrence) and section 6 (the block decomposition, listing 1).
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dsl.reference.norm import gated_rms_norm
from dsl.spec import Mamba2Spec

Scan = Literal["recurrent", "chunked"]


def causal_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Depthwise causal convolution over time; tokens before the first read as zero.

    x: [B, T, C]. weight: [C, W]; tap W-1 meets the current token. bias: [C].
    """
    width, T = weight.shape[1], x.shape[1]
    padded = F.pad(x, (0, 0, width - 1, 0))
    taps: Iterator[Tensor] = (padded[:, i : i + T] * weight[:, i] for i in range(width))
    return sum(taps, start=bias)


def scan_recurrent(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """S_t = exp(dt_t A) S_{t-1} + (dt_t x_t) B_t^T; y_t = S_t C_t, one token after another.

    x: [B, T, H, P]. dt: [B, T, H], positive. A: [H], negative. B, C: [B, T, H, N]. Returns y [B, T, H, P].
    """
    S = x.new_zeros(x.shape[0], *x.shape[2:], B.shape[-1])  # [B, H, P, N]
    y = []
    for t in range(x.shape[1]):
        decay = torch.exp(dt[:, t] * A)
        u = dt[:, t, :, None] * x[:, t]
        S = decay[..., None, None] * S + u[..., :, None] * B[:, t, :, None, :]
        y.append((S @ C[:, t, :, :, None]).squeeze(-1))
    return torch.stack(y, dim=1)


def scan_chunked(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, chunk: int = 64) -> Tensor:
    """The recurrence of `scan_recurrent` as matmuls within chunks and a loop over chunk states.

    Shapes as there, except B, C: [B, T, G, N]: head h reads group h // (H / G). Every decay is the exponential of a
    difference of cumulated log-decays, clamped at 0 so that rounding cannot make it exceed 1.
    """
    length, H, G = x.shape[1], x.shape[2], B.shape[2]
    pad = -length % chunk
    # dt = 0 leaves the state as it is
    x, B, C = (F.pad(value, (0, 0, 0, 0, 0, pad)).unflatten(1, (-1, chunk)) for value in (x, B, C))
    dt = F.pad(dt, (0, 0, 0, pad)).unflatten(1, (-1, chunk)).movedim(-1, 2)  # [B, c, H, L]
    x = (dt.movedim(2, -1)[..., None] * x).movedim(-2, 2)  # [B, c, H, L, P]
    B, C = (value.movedim(-2, 2) for value in (B, C))  # [B, c, G, L, N]
    log_decay = (dt * A[:, None]).cumsum(-1)  # [B, c, H, L], from the start of the chunk

    def per_group(value: Tensor) -> Tensor:
        return torch.unflatten(value, 2, (G, H // G))

    within = (log_decay[..., :, None] - log_decay[..., None, :]).clamp(max=0.0).exp().tril()  # [B, c, H, L, L]
    scores = (C @ B.mT).unsqueeze(3)  # [B, c, G, 1, L, L]
    y = (per_group(within) * scores).flatten(2, 3) @ x

    to_end = (log_decay[..., -1:] - log_decay).clamp(max=0.0).exp()
    added = (per_group((to_end[..., None] * x).mT) @ B.unsqueeze(3)).flatten(2, 3)  # [B, c, H, P, N]
    chunk_decay = log_decay[..., -1].exp()[..., None, None]
    S, starts = torch.zeros_like(added[:, 0]), []
    for i in range(added.shape[1]):
        starts.append(S)
        S = chunk_decay[:, i] * S + added[:, i]
    carried = (C.unsqueeze(3) @ per_group(torch.stack(starts, dim=1)).mT).flatten(2, 3)  # [B, c, H, L, P]
    y = y + log_decay.exp()[..., None] * carried
    return y.movedim(2, -2).flatten(1, 2)[:, :length]


def mamba2(mixer: Mamba2Spec, weights: Mapping[str, Tensor], x: Tensor, norm_eps: float, scan: Scan) -> Tensor:
    """One Mamba-2 mixer from an empty state. x: [B, T, d] -> [B, T, d].

    in_proj gives z, x, B, C, dt; x, B, C pass the convolution and silu; dt = clamp(softplus(dt + dt_bias), dt_limit).
    Names and order follow `Mamba2Mixer.torch_forward` of transformers models/mamba2/modeling_mamba2.py.
    """
    H, G, N = mixer.num_heads, mixer.num_groups, mixer.state_size
    z, xBC, dt = F.linear(x, weights["in_proj.weight"]).split([mixer.d_inner, mixer.conv_dim, H], dim=-1)
    xBC = F.silu(causal_conv(xBC, weights["conv.weight"], weights["conv.bias"]))
    x, B, C = xBC.split([mixer.d_inner, G * N, G * N], dim=-1)
    x, B, C = x.unflatten(-1, (H, -1)), B.unflatten(-1, (G, N)), C.unflatten(-1, (G, N))
    dt = F.softplus(dt + weights["dt_bias"]).clamp(*mixer.dt_limit)
    A = -weights["A_log"].exp()
    if scan == "chunked":
        y = scan_chunked(x, dt, A, B, C)
    else:
        y = scan_recurrent(x, dt, A, *(value.repeat_interleave(H // G, dim=2) for value in (B, C)))
    y = (y + weights["D"][:, None] * x).flatten(-2)
    gated = gated_rms_norm(y, z, weights["norm.weight"], norm_eps, mixer.norm_groups)
    return F.linear(gated, weights["out_proj.weight"])
