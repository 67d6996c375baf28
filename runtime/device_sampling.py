"""Device functions that turn a row of logits into a token. What they compute is defined in docs/sampling.md.

One program has a whole row. Every filter is a floor: a lowest logit that is kept, so a row needs no sorting, and equal
logits stay or go together.
"""

import triton
import triton.language as tl

PROMPT_TOKEN: tl.constexpr = tl.constexpr(1 << 30)  # of a token count: the token is part of the prompt


@triton.jit
def gumbel(seed, position, token):
    """Standard Gumbel noise of (seed, position, token id): Philox 4x32-10, `u` strictly inside (0, 1)."""
    zero = token * 0
    bits, _, _, _ = tl.philox(seed, token, zero + position, zero, zero)
    u = ((bits >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(u))


@triton.jit
def ordered(z):
    """fp32 as uint32 in the same order, -0.0 like 0.0."""
    bits = (z + 0.0).to(tl.uint32, bitcast=True)
    return tl.where(bits >= 0x80000000, ~bits, bits | 0x80000000)


@triton.jit
def adjust_logits(
    logits,
    tokens,
    num_drafts,
    position,
    stop_tokens,
    min_len,
    token_counts,
    repetition_penalty,
    presence_penalty,
    frequency_penalty,
    num_biases,
    bias_tokens,
    bias_values,
    masked,
    grammar_mask,
    VOCAB: tl.constexpr,
    BLOCK_V: tl.constexpr,
    MAX_STOP: tl.constexpr,
):
    """Biases, penalties and masks, in place, on logits [VOCAB] fp32 of the token at `position`; pointers: the slot's.

    Counted besides token_counts [VOCAB] are tokens[1 .. num_drafts], which stand before the token but are not accepted
    yet. Stops stay out below min_len; a token whose bit of grammar_mask [VOCAB/32] is 0, if `masked`.
    """
    for i_v in range(0, VOCAB, BLOCK_V):
        o_v = i_v + tl.arange(0, BLOCK_V)
        m_v = o_v < VOCAB
        z = tl.load(logits + o_v, mask=m_v, other=-float("inf"))
        for j in range(num_biases):
            z = tl.where(o_v == tl.load(bias_tokens + j), z + tl.load(bias_values + j), z)
        count = tl.load(token_counts + o_v, mask=m_v, other=0)
        for j in range(1, num_drafts + 1):
            count += tl.where(o_v == tl.load(tokens + j), 1, 0)
        z = tl.where(count > 0, tl.where(z > 0.0, z / repetition_penalty, z * repetition_penalty), z)
        in_output = count & (PROMPT_TOKEN - 1)
        z = z - frequency_penalty * in_output.to(tl.float32)
        z = tl.where(in_output > 0, z - presence_penalty, z)
        if position < min_len:
            for j in range(MAX_STOP):
                z = tl.where(o_v == tl.load(stop_tokens + j), -float("inf"), z)
        if masked:
            word = tl.load(grammar_mask + o_v // 32, mask=m_v, other=0)
            z = tl.where((word >> (o_v % 32)) & 1 == 1, z, -float("inf"))
        tl.store(logits + o_v, z, mask=m_v)
    tl.debug_barrier()  # other threads read what these wrote


@triton.jit
def floor_of_mass(
    logits, least, target, top, temperature, WEIGHTED: tl.constexpr, VOCAB: tl.constexpr, BLOCK_V: tl.constexpr
):
    """The highest floor, at least `least`, above which the kept tokens weigh `target` or more together.

    A token weighs `exp(z / temperature - top)`, or 1 unless WEIGHTED. Found bit by bit; sums run in ascending ids.
    """
    floor = least * 0
    for i in range(32):
        candidate = floor | ((floor * 0 + 1) << (31 - i))
        mass = target * 0.0
        for i_v in range(0, VOCAB, BLOCK_V):
            o_v = i_v + tl.arange(0, BLOCK_V)
            z = tl.load(logits + o_v, mask=o_v < VOCAB, other=-float("inf"))
            kept = (ordered(z) >= tl.maximum(candidate, least)) & (o_v < VOCAB)
            weight = tl.exp(z / temperature - top) if WEIGHTED else tl.full(z.shape, 1.0, tl.float32)
            mass += tl.sum(tl.where(kept, weight, 0.0), axis=0)
        floor = tl.where(mass >= target, candidate, floor)
    return tl.maximum(floor, least)


@triton.jit
def logit_floor(logits, temperature, top_k, top_p, min_p, VOCAB: tl.constexpr, BLOCK_V: tl.constexpr):
    """The lowest logit kept by min_p, then top_k, then top_p, as `ordered`. temperature > 0; 0, 1, 0 keep all."""
    top = tl.full((), -float("inf"), tl.float32)
    for i_v in range(0, VOCAB, BLOCK_V):
        o_v = i_v + tl.arange(0, BLOCK_V)
        top = tl.maximum(top, tl.max(tl.load(logits + o_v, mask=o_v < VOCAB, other=-float("inf")), axis=0))
    top = top / temperature
    floor = tl.full((), 0, tl.uint32)
    if min_p > 0.0:
        floor = ~floor
        for i_v in range(0, VOCAB, BLOCK_V):
            o_v = i_v + tl.arange(0, BLOCK_V)
            z = tl.load(logits + o_v, mask=o_v < VOCAB, other=-float("inf"))
            kept = (tl.exp(z / temperature - top) >= min_p) & (o_v < VOCAB)
            floor = tl.minimum(floor, tl.min(tl.where(kept, ordered(z), 0xFFFFFFFF), axis=0))
    if top_k > 0:
        floor = floor_of_mass(logits, floor, top_k.to(tl.float32), top, temperature, False, VOCAB, BLOCK_V)
    if top_p < 1.0:
        total = tl.full((), 0.0, tl.float32)
        for i_v in range(0, VOCAB, BLOCK_V):
            o_v = i_v + tl.arange(0, BLOCK_V)
            z = tl.load(logits + o_v, mask=o_v < VOCAB, other=-float("inf"))
            kept = (ordered(z) >= floor) & (o_v < VOCAB)
            total += tl.sum(tl.where(kept, tl.exp(z / temperature - top), 0.0), axis=0)
        floor = floor_of_mass(logits, floor, top_p * total, top, temperature, True, VOCAB, BLOCK_V)
    return floor


@triton.jit
def choose_token(logits, floor, temperature, seed, position, VOCAB: tl.constexpr, BLOCK_V: tl.constexpr):
    """`argmax(logits / temperature + gumbel)` of what is not below the floor; `argmax(logits)` at temperature 0.

    logits: pointer to VOCAB fp32. Ties go to the lowest id. Returns an int32 in [0, VOCAB).
    """
    best = -float("inf")
    token = VOCAB
    for i_v in range(0, VOCAB, BLOCK_V):
        o_v = i_v + tl.arange(0, BLOCK_V)
        z = tl.load(logits + o_v, mask=o_v < VOCAB, other=-float("inf"))
        if temperature > 0.0:
            z = tl.where(ordered(z) >= floor, z / temperature + gumbel(seed, position, o_v), -float("inf"))
        top = tl.max(z, axis=0)
        first = tl.min(tl.where(z == top, o_v, VOCAB), axis=0)
        token = tl.where(top > best, first, token)
        best = tl.maximum(best, top)
    return tl.minimum(token, VOCAB - 1)
