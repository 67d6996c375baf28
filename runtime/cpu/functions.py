"""Device functions that this backend has a second form of, written by hand; elsewhere, and in check mode, plain Triton.

A kernel calls them like any other function. The backend knows them by their full names (`ttir/inline.py`); what they
compute, bit for bit, is what their text here says, which tests compile as well.
"""

import triton
import triton.language as tl


@triton.jit(noinline=True)
def coded_bf16(rows, escapes, codebook, escaped, ROWS: tl.constexpr, N: tl.constexpr):
    """ROWS k pairs of a panel of N columns whose bf16 lie in 12 bits each: [ROWS, N, 2], the groups of a packed dot.

    A bf16 is a high byte (sign, upper seven bits of the exponent) and a low byte (last bit of the exponent, mantissa).
    All arguments are pointers to uint8. rows [ROWS, 3 N]: of each row the low bytes of its 2 N elements, then N codes.
    codebook [16]: high bytes. Code j holds the number in the codebook of the high byte of element j in its lower four
    bits, of element N + j in its upper ones. Where escaped [ROWS] is not zero the row's high bytes are stored
    themselves: those of elements 0 .. N - 1 in the place of its codes, the others in escapes [ROWS, N], of which
    nothing else is read.
    """
    tl.static_assert(rows.dtype.element_ty == tl.uint8 and escapes.dtype.element_ty == tl.uint8)
    tl.static_assert(codebook.dtype.element_ty == tl.uint8 and escaped.dtype.element_ty == tl.uint8)
    o_row = tl.arange(0, ROWS)[:, None]
    o_n = tl.arange(0, N)[None, :]
    o_low = (o_row * (3 * N))[:, :, None] + o_n[:, :, None] * 2 + tl.arange(0, 2)[None, None, :]
    code = tl.load(rows + (o_row * (3 * N) + 2 * N + o_n))
    plain = tl.load(escaped + o_row) != 0
    rest = tl.load(escapes + (o_row * N + o_n), mask=plain & (o_n < N), other=0)
    first = tl.where(plain, code, tl.load(codebook + (code & 15)))
    second = tl.where(plain, rest, tl.load(codebook + (code >> 4)))
    high = tl.reshape(tl.permute(tl.join(first, second), (0, 2, 1)), (ROWS, N, 2))
    return ((high.to(tl.uint16) << 8) | tl.load(rows + o_low).to(tl.uint16)).to(tl.bfloat16, bitcast=True)
