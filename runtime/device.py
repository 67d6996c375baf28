"""Device functions shared by the generated kernels: one formula, one order, the same bits wherever it is used.

Contraction is off in every kernel (docs/numerics.md): `tl.fma` stands where one rounding is meant.
"""

import triton
import triton.language as tl

from runtime.cpu.functions import coded_bf16


@triton.jit
def panel_operand(flat, K: tl.constexpr, N: tl.constexpr, GROUP: tl.constexpr = 2):
    """Read `flat [K * N]`, stored as groups along k `[K/GROUP][N][GROUP]`, as the right operand `[K, N]` of a dot.

    GROUP: 2 of bf16, 4 of int8: 32 bits. flat may have the shape of the groups as well.
    """
    groups = tl.reshape(flat, (K // GROUP, N, GROUP))
    return tl.reshape(tl.permute(groups, (0, 2, 1)), (K, N))


@triton.jit
def load_rows(x, o_m, rows, first, K: tl.constexpr, K_PADDED: tl.constexpr, BLOCK_K: tl.constexpr):
    """Columns first .. first + BLOCK_K - 1 of rows o_m [BLOCK_M] of x [rows, K]; zeros past its rows and columns."""
    o_k = tl.arange(0, BLOCK_K)
    m_x = o_m[:, None] < rows
    if K < K_PADDED:
        m_x = m_x & (first + o_k[None, :] < K)
    return tl.load(x + (o_m[:, None] * K + (first + o_k)[None, :]), mask=m_x, other=0.0)


@triton.jit
def coded_groups(w, escapes, panel, first, ROWS: tl.constexpr, N: tl.constexpr, PAIRS: tl.constexpr):
    """Rows first .. first + ROWS - 1 of a panel of a coded matrix (runtime/coding.py): [ROWS, N, 2] bf16.

    w [panels, HEAD + PAIRS, 3, N], escapes [panels, PAIRS, N], uint8. panel: int64.
    """
    HEAD: tl.constexpr = (16 + PAIRS + 3 * N - 1) // (3 * N)
    codebook = w + panel * ((HEAD + PAIRS) * 3 * N)
    o_escapes = panel * (PAIRS * N) + first * N
    return coded_bf16(
        codebook + (HEAD + first) * (3 * N), escapes + o_escapes, codebook, codebook + 16 + first, ROWS, N
    )


@triton.jit
def rms_scale(x, SIZE: tl.constexpr, EPS: tl.constexpr):
    """`1 / sqrt(mean(x^2) + EPS)` over `x [BLOCK]` fp32, zero past SIZE. Source: arXiv 1910.07467, eq. 4."""
    return 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / SIZE + EPS)


@triton.jit
def silu(x):
    """`x * sigmoid(x)`, fp32."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    """`log(1 + exp(x))`, linear above 20, accurate for very negative x (log1p by the correction of Kahan)."""
    e = tl.exp(tl.minimum(x, 20.0))
    u = 1.0 + e
    log1p = tl.where(u == 1.0, e, tl.log(u) * (e / (u - 1.0)))
    return tl.where(x > 20.0, x, log1p)


@triton.jit
def mamba2_dt(raw, bias, LOW: tl.constexpr, HIGH: tl.constexpr):
    """Time step of a head: `clamp(softplus(raw + bias), LOW, HIGH)`. Source: arXiv 2405.21060, section 7."""
    return tl.minimum(tl.maximum(softplus(raw + bias), LOW), HIGH)


@triton.jit
def mamba2_fold(state, x, b, dt, decay):
    """Fold one record: `S_t = decay S_{t-1} + b (dt x)^T`. state [N, P], x [P], b [N].

    Source: arXiv 2405.21060, eq. 1.
    """
    update = b[:, None] * (dt * x)[None, :]
    return tl.fma(state, tl.broadcast_to(decay, state.shape), update)


@triton.jit
def mamba2_readout(state, c):
    """`S^T c`, the sum over the state index. state [N, P], c [N] -> [P]. Source: arXiv 2405.21060, eq. 1."""
    return tl.sum(state * c[:, None], axis=0)


@triton.jit
def mamba2_fold_records(
    state,
    first,
    last,
    records,
    steps,
    a,
    o_x,
    m_x,
    o_b,
    m_b,
    RING: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Fold the records of positions [first, last) in order.

    records [RING, CHANNELS] fp32, x at o_x and B at o_b; steps [RING, HEADS] fp32, from the head on.
    """
    for here in range(first, last):
        record = records + (here & (RING - 1)) * CHANNELS
        dt = tl.load(steps + (here & (RING - 1)) * HEADS)
        b_x = tl.load(record + o_x, mask=m_x, other=0.0)
        b_b = tl.load(record + o_b, mask=m_b, other=0.0)
        state = mamba2_fold(state, b_x, b_b, dt, tl.exp(dt * a))
    return state


@triton.jit
def conv_append(
    raw, here, conv_ring, weight, bias, o_c, m_c, WIDTH: tl.constexpr, RING: tl.constexpr, CHANNELS: tl.constexpr
):
    """Put the raw inputs of position `here` into the ring; returns silu of the causal conv there, oldest tap first.

    conv_ring [RING, CHANNELS], weight [WIDTH, CHANNELS], bias [CHANNELS] fp32; positions below zero read as zero.
    """
    tl.store(conv_ring + (here & (RING - 1)) * CHANNELS + o_c, raw, mask=m_c)
    acc = tl.load(bias + o_c, mask=m_c, other=0.0)
    for j in tl.static_range(WIDTH - 1):
        past = here - (WIDTH - 1) + j
        tap = tl.load(conv_ring + (past & (RING - 1)) * CHANNELS + o_c, mask=m_c & (past >= 0), other=0.0)
        acc = tl.fma(tap, tl.load(weight + j * CHANNELS + o_c, mask=m_c, other=0.0), acc)
    return silu(tl.fma(raw, tl.load(weight + (WIDTH - 1) * CHANNELS + o_c, mask=m_c, other=0.0), acc))


@triton.jit
def conv_window(position, conv_ring, window, o_c, m_c, WIDTH: tl.constexpr, RING: tl.constexpr, CHANNELS: tl.constexpr):
    """Copy the raw inputs of the WIDTH - 1 positions before `position` to window [WIDTH - 1, CHANNELS]."""
    for j in tl.static_range(WIDTH - 1):
        past = position - (WIDTH - 1) + j
        kept = tl.load(conv_ring + (past & (RING - 1)) * CHANNELS + o_c, mask=m_c & (past >= 0), other=0.0)
        tl.store(window + j * CHANNELS + o_c, kept, mask=m_c)


@triton.jit
def attend_page(scores, b_v, top, total, acc):
    """One page of online softmax. scores [G, PAGE] fp32, b_v [PAGE, D] bf16, top [G], total [G, PAGE], acc [G, D].

    Weights are 2^(score - top): scores come multiplied by log2(e), along with their scale.
    Source: arXiv 2205.14135, algorithm 1.
    """
    new_top = tl.maximum(top, tl.max(scores, axis=1))
    weights = tl.exp2(scores - new_top[:, None])
    rescale = tl.exp2(top - new_top)
    total = total * rescale[:, None] + weights
    return new_top, total, tl.dot(weights.to(tl.bfloat16), b_v, acc * rescale[:, None])
