"""The causal walk for Hopper in bf16, heads of 65 to 128: two groups of warps work at different things.

A state of 2 · 128 · 128 sums fills half the registers of a processor. Eight warps keep it: they turn the sources,
add them to the state and put it into shared memory, rounded, as the next chunk's operand. Meanwhile four other warps
work out the results of the chunk. Each side tells the other when a tile is ready and when it is free. Two forms of one
sum, where Φ(x) = [φ(x) cos θp, φ(x) sin θp] at position p, and the state is H = Σ Φ(b) ⊗ c:

    values_walk      Φ(a) H              o, with a = q, b = k, c = v; against time dv, with a = k, b = q, c = do
    features_walk    a Hᵀ, turned back   dq, with a = do, b = k, c = v; against time dk, with a = v, b = q, c = do

Sources are turned (`turn_tile`; dk and dv take Φ(q)/z), results are not: the rows of a product with the halves of H are
multiplied by cos and sin, in fp32, and those of dq by 1/z. So a term that multiplies φ(x) by something of its position
stands in turn_tile and in those two lines. Results come in two halves of 64 columns: the sums of both, times two, would
not fit the registers.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from cosformer.ops.triton.hopper_parts import (
    BF16,
    F32,
    ONES,
    SIZES,
    C,
    barrier,
    barriers,
    buffer,
    clamped,
    clock,
    cos_sin,
    feature_map_gradient,
    fetch,
    kept,
    load_state,
    mapped,
    phases,
    row_numbers,
    rows,
    store_state,
    tile,
    turned,
    unknown_zero,
    where_is,
    write_rows,
)

W = gl.constexpr(128)
HALF = gl.constexpr(64)
COLUMNS = gl.constexpr(8)  # of the state that carries denominators; as inner width of a product 16, the rest of them 0
R = gl.constexpr(32)  # rows that are turned at a time: more would not fit the registers beside the state
# of the eight warps: the state, its column of ones, tiles of sources
STATE = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 128, 16]))
STATE1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [8, 1], [16, 8, 16]))
LINES8 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))
ONES8 = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [8, 1], [1, 0]))
# of the four: scores and half results, denominators, tiles
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUMS1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 8, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
LEFT1 = gl.constexpr(gl.DotOperandLayout(0, SUMS1.value, 2))
LINES4 = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
RESULT_WARPS, RESULT_REGISTERS = gl.constexpr(4), gl.constexpr(168)
TILE_BYTES = gl.constexpr(64 * 128 * 2)


@gluon.jit
def tell(bars, slot):
    """All warps of this side are through."""
    barrier()
    mbarrier.arrive(bars.index(slot), count=1)


@gluon.jit
def lying(COUNT: gl.constexpr, WIDTH: gl.constexpr, value):
    """Columns as rows."""
    made = tile(COUNT, WIDTH)
    made.index(0).store(gl.full([COUNT, WIDTH], value, BF16, ONES8))
    return made


@gluon.jit
def numerators(p_extra, p_z, rows_q, row, length, eps, LAYOUT: gl.constexpr):
    """What extra was before its division by z, for each of the chunk's columns."""
    o_c = row + gl.arange(0, C, gl.SliceLayout(0, LAYOUT))
    m_c = (o_c >= 0) & (o_c < length)
    z = gl.load(p_z + rows_q + o_c, mask=m_c, other=1.0)
    return gl.load(p_extra + rows_q + o_c, mask=m_c, other=0.0) * clamped(z, eps)


@gluon.jit
def in_two_rows(p_extra, p_z, rows_q, row, length, eps):
    """[COLUMNS, C] in bf16 whose columns add up to `numerators`."""
    x = numerators(p_extra, p_z, rows_q, row, length, eps, ONES8)
    high = x.to(BF16).to(F32)
    o_1 = gl.arange(0, COLUMNS, gl.SliceLayout(1, ONES8))
    return (gl.where((o_1 < COLUMNS // 2)[:, None], high[None, :], (x - high)[None, :]) * (2 / COLUMNS)).to(BF16)


@gluon.jit
def copy_in(d_x, s_x, bars, slot, i_b, i_head, row, wanted):
    mbarrier.expect(bars.index(slot), TILE_BYTES, pred=wanted)
    fetch(d_x, s_x, bars, slot, i_b, i_head, row, wanted)


@gluon.jit
def turn_tile(
    s_x, s_sin, scale_0, scale_1, p_mask, at_mask, chunk, low, left, m_st, theta, K: gl.constexpr, MAP: gl.constexpr,
    EDGED: gl.constexpr, MASKED: gl.constexpr, SCALED: gl.constexpr,
):  # fmt: skip
    """Φ of the rows of a tile: the half with cos in its place, the other in s_sin. SCALED: each row times its scale."""
    cos_r, sin_r = cos_sin(theta * gl.arange(0, R, gl.SliceLayout(1, LINES8)).to(F32))
    cos_step, sin_step = cos_sin(theta * R)
    cos_0, sin_0 = cos_sin(theta * chunk.to(F32))
    for j in gl.static_range(C // R):
        keep = kept(p_mask, at_mask + j * R, low - j * R, left - j * R, m_st, LINES8, MASKED, R)
        x = mapped(s_x.slice(j * R, R).load(LINES8), keep, LINES8, K, MAP, EDGED)
        cos, sin = cos_r * cos_0 - sin_r * sin_0, sin_r * cos_0 + cos_r * sin_0
        if SCALED:
            scale = scale_1 if j else scale_0
            cos, sin = cos * scale, sin * scale
        b_c, b_s = turned(x, cos[:, None], sin[:, None])
        s_x.slice(j * R, R).store(b_c)
        s_sin.slice(j * R, R).store(b_s)
        cos_0, sin_0 = cos_0 * cos_step - sin_0 * sin_step, sin_0 * cos_step + cos_0 * sin_step


@gluon.jit
def clean_tile(s_x, p_mask, at_mask, low, left, m_st, MASKED: gl.constexpr):
    """Rows that do not count become 0."""
    for j in gl.static_range(C // R):
        keep = kept(p_mask, at_mask + j * R, low - j * R, left - j * R, m_st, LINES8, MASKED, R)
        s_x.slice(j * R, R).store(gl.where(keep[:, None], s_x.slice(j * R, R).load(LINES8), 0.0))


@gluon.jit
def keep_state(s_hc, s_hs, s_nc, s_ns, b_hc, b_hs, b_nc, b_ns, NORMED: gl.constexpr):
    s_hc.store(b_hc.to(BF16))
    s_hs.store(b_hs.to(BF16))
    if NORMED:
        s_nc.slice(0, COLUMNS).permute((1, 0)).store(b_nc.to(BF16))
        s_ns.slice(0, COLUMNS).permute((1, 0)).store(b_ns.to(BF16))
    fence_async_shared()


@gluon.jit
def walk_state(
    d_b, d_c, p_z, p_extra, p_mask, p_h, p_h_out, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_nc, s_ns, sources, others, ready,
    ready_state, free_state, free, i_b, h_b, at_b, lead_b, len_b, rows_q, at_state, at_out, wanted_out, last, start,
    count, m_st, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, ADDED: gl.constexpr, NORMED: gl.constexpr,
    MASKED: gl.constexpr, EDGED: gl.constexpr, REVERSE: gl.constexpr, SCALED: gl.constexpr, STATE_IN: gl.constexpr,
    STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Eight warps: H = Σ Φ(b) ⊗ [c, 1]; against time Σ Φ(b)/z ⊗ [c, −do·o]. NORMED: there is such a column, and it is
    ADDED to."""
    step = C
    if REVERSE:
        step = -C
    copy_in(d_b, s_b, sources, 0, i_b, h_b, at_b + start - lead_b, True)
    copy_in(d_c, s_c, others, 0, i_b, h_b, at_b + start - lead_b, True)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state, W, STATE, STATE1, K, V, STATE_IN, NORMED, COLUMNS)
    if REVERSE:  # here the columns add up to the row
        b_nc, b_ns = b_nc * (1 / COLUMNS), b_ns * (1 / COLUMNS)
    keep_state(s_hc.index(0), s_hs.index(0), s_nc.index(0), s_ns.index(0), b_hc, b_hs, b_nc, b_ns, NORMED)
    tell(ready_state, 0)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * step, i % 2
        row, s_cos, s_sin, s_values = chunk - lead_b, rows(s_b, now), rows(s_bs, now), rows(s_c, now)
        low, left = gl.to_tensor(0), last - chunk
        if REVERSE:
            low, left = -row, len_b - row
        scale_0, scale_1 = 1.0, 1.0
        if SCALED:
            scale_0 = 1 / clamped(row_numbers(p_z, rows_q, row, len_b, LINES8, 1.0, R), eps)
            scale_1 = 1 / clamped(row_numbers(p_z, rows_q, row + R, len_b, LINES8, 1.0, R), eps)
        if REVERSE and ADDED:
            s_1.index(at_0).store(in_two_rows(p_extra, p_z, rows_q, row, len_b, eps))
        mbarrier.wait(sources.index(now), (i // 2) & 1)
        turn_tile(
            s_cos, s_sin, scale_0, scale_1, p_mask, at_b + row, chunk, low, left, m_st, theta, K, MAP, EDGED,
            MASKED and not REVERSE, SCALED,
        )  # fmt: skip
        mbarrier.wait(others.index(now), (i // 2) & 1)
        if EDGED:
            clean_tile(s_values, p_mask, at_b + row, low, left, m_st, MASKED and not REVERSE)
        fence_async_shared()
        tell(ready, 0)
        hc = warpgroup_mma(s_cos.permute((1, 0)), s_values, b_hc, is_async=True)
        hs = warpgroup_mma(s_sin.permute((1, 0)), s_values, b_hs, is_async=True)
        if ADDED:
            nc = warpgroup_mma(s_cos.permute((1, 0)), s_1.index(at_0).permute((1, 0)), b_nc, is_async=True)
            ns = warpgroup_mma(s_sin.permute((1, 0)), s_1.index(at_0).permute((1, 0)), b_ns, is_async=True)
        more = i + 1 < count
        mbarrier.wait(free.index(1 - now), ((i - 1) // 2) & 1, pred=more & (i > 0))
        copy_in(d_b, s_b, sources, 1 - now, i_b, h_b, at_b + row + step, more)
        copy_in(d_c, s_c, others, 1 - now, i_b, h_b, at_b + row + step, more)
        if ADDED:
            b_hc, b_hs, b_nc, b_ns = warpgroup_mma_wait(0, [hc, hs, nc, ns])
        else:
            b_hc, b_hs = warpgroup_mma_wait(0, [hc, hs])
        mbarrier.wait(free_state.index(0), i & 1)
        keep_state(
            s_hc.index(at_0), s_hs.index(at_0), s_nc.index(at_0), s_ns.index(at_0), b_hc, b_hs, b_nc, b_ns, ADDED
        )  # fmt: skip
        tell(ready_state, 0)
    if STATE_OUT:  # noqa: SIM102
        if wanted_out:
            if REVERSE:
                b_nc, b_ns = b_nc * COLUMNS, b_ns * COLUMNS
            store_state(b_hc, b_hs, b_nc, b_ns, p_h_out, at_out, W, STATE, STATE1, K, V, NORMED, COLUMNS)


@gluon.jit
def triangle(x, REVERSE: gl.constexpr):
    """What a result may see."""
    o_t, o_s = gl.arange(0, C, gl.SliceLayout(1, SUMS)), gl.arange(0, C, gl.SliceLayout(0, SUMS))
    if REVERSE:
        x = gl.where(o_s[None, :] >= o_t[:, None], x, 0.0)
    else:
        x = gl.where(o_t[:, None] >= o_s[None, :], x, 0.0)
    return x.to(BF16)


@gluon.jit
def product(a, b):
    return warpgroup_mma(a, b, gl.zeros([C, HALF], F32, SUMS), use_acc=False, is_async=True)


@gluon.jit
def walk_values(
    d_a, d_o, p_o, p_z, p_mask, s_a, s_o, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_nc, s_ns, arrived, ready, ready_state,
    free_state, free, i_b, h_a, h_o, at_a, lead_a, rows_q, last, start, count, o_sb, o_sh, o_st, m_st, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, DIVIDED: gl.constexpr, MASKED: gl.constexpr,
    REVERSE: gl.constexpr, BY_HAND: gl.constexpr,
):  # fmt: skip
    """Four warps: Φ(a) H, and what the chunk itself adds."""
    step = C
    if REVERSE:
        step = -C
    cos_r, sin_r = clock(SUMS, theta)
    copy_in(d_a, s_a, arrived, 0, i_b, h_a, at_a + start - lead_a, True)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * step, i % 2
        row, s_left = chunk - lead_a, rows(s_a, now)
        copy_in(d_a, s_a, arrived, 1 - now, i_b, h_a, at_a + row + step, i + 1 < count)
        mbarrier.wait(arrived.index(now), (i // 2) & 1)
        if MAP != "identity":
            all_rows = kept(p_mask, 0, 0, C, m_st, LINES4, False)
            s_left.store(mapped(s_left.load(LINES4), all_rows, LINES4, K, MAP, False).to(BF16))
        fence_async_shared()
        barrier()
        cos, sin = phases(cos_r, sin_r, chunk, theta)
        s_hc0, s_hs0 = s_hc.index(at_0).slice(0, HALF, 1), s_hs.index(at_0).slice(0, HALF, 1)
        s_hc1, s_hs1 = s_hc.index(at_0).slice(HALF, HALF, 1), s_hs.index(at_0).slice(HALF, HALF, 1)
        mbarrier.wait(ready.index(0), i & 1)
        ac, as_ = product(s_left, rows(s_b, now).permute((1, 0))), product(s_left, rows(s_bs, now).permute((1, 0)))
        mbarrier.wait(ready_state.index(0), i & 1)
        if DIVIDED:
            none1 = gl.zeros([C, COLUMNS], F32, SUMS1)
            s_nc1, s_ns1 = s_nc.index(at_0).slice(0, COLUMNS), s_ns.index(at_0).slice(0, COLUMNS)
            zc = warpgroup_mma(s_left, s_nc1.permute((1, 0)), none1, use_acc=False, is_async=True)
            zs = warpgroup_mma(s_left, s_ns1.permute((1, 0)), none1, use_acc=False, is_async=True)
        oc, os = product(s_left, s_hc0), product(s_left, s_hs0)
        b_ac, b_as = warpgroup_mma_wait(2 + 2 * DIVIDED, [ac, as_])
        b_p = gl.convert_layout(triangle(b_ac * cos + b_as * sin, REVERSE), LEFT, assert_trivial=True)
        if DIVIDED:
            b_zc, b_zs = warpgroup_mma_wait(2, [zc, zs])
            cos1 = gl.convert_layout(cos, SUMS1, assert_trivial=True)
            sin1 = gl.convert_layout(sin, SUMS1, assert_trivial=True)
            z = warpgroup_mma(b_p, s_1.index(at_0).permute((1, 0)), b_zc * cos1 + b_zs * sin1, is_async=True)
        b_oc, b_os = warpgroup_mma_wait(DIVIDED, [oc, os])
        o = warpgroup_mma(b_p, rows(s_c, now).slice(0, HALF, 1), b_oc * cos + b_os * sin, is_async=True)
        oc, os = product(s_left, s_hc1), product(s_left, s_hs1)
        b_o = warpgroup_mma_wait(2, [o])
        scale = gl.full([C], 1.0, F32, gl.SliceLayout(1, SUMS))
        if DIVIDED:
            b_z = gl.sum(warpgroup_mma_wait(2, [z]), 1) * (1 / COLUMNS)
            o_1 = row + gl.arange(0, C, gl.SliceLayout(1, SUMS1))
            gl.store(p_z + rows_q + o_1, b_z, mask=(o_1 >= 0) & (o_1 < last - lead_a))
            scale = gl.convert_layout(1 / clamped(b_z, eps), gl.SliceLayout(1, SUMS), assert_trivial=True)
        if REVERSE and MASKED:  # the gradient of a masked value is 0
            keep_out = kept(p_mask, at_a + row, 0, last - chunk, m_st, SUMS, True)
            scale = gl.where(keep_out, scale, 0.0)
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        rows(s_o, at_0).slice(0, HALF, 1).store(scaled(b_o, scale, DIVIDED or (REVERSE and MASKED)))
        b_oc, b_os = warpgroup_mma_wait(0, [oc, os])
        o = warpgroup_mma(b_p, rows(s_c, now).slice(HALF, HALF, 1), b_oc * cos + b_os * sin, is_async=True)
        tell(free_state, 0)
        b_o = warpgroup_mma_wait(0, [o])
        tell(free, now)
        rows(s_o, at_0).slice(HALF, HALF, 1).store(scaled(b_o, scale, DIVIDED or (REVERSE and MASKED)))
        fence_async_shared()
        barrier()
        write_rows(
            s_o.index(at_0), d_o, p_o, o_sb, o_sh, o_st, i_b, h_o, at_a + row, -row, last - lead_a - row, LINES4, V,
            BY_HAND,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def scaled(x, scale, WANTED: gl.constexpr):
    if WANTED:
        x = gl.where(scale[:, None] == 0, 0.0, x * scale[:, None])
    return x.to(BF16)


@gluon.jit
def in_two_of_columns(x):
    """[C, ONES] in bf16, of which the first COLUMNS add up to x, and the others are 0."""
    high = x.to(BF16).to(F32)
    o_1 = gl.arange(0, ONES, gl.SliceLayout(0, LEFT1))[None, :]
    both = gl.where(o_1 < COLUMNS // 2, high[:, None], (x - high)[:, None]) * (2 / COLUMNS)
    return gl.where(o_1 < COLUMNS, both, 0.0).to(BF16)


@gluon.jit
def walk_features(
    d_x, d_a, d_dx, p_dx, p_z, p_extra, p_mask, s_x, s_a, s_p, s_b, s_bs, s_c, s_hc, s_hs, s_nc, s_ns, arrived, own,
    ready, ready_state, free_state, free, i_b, h_x, i_head, at_x, lead_x, lead, len_q, rows_q, last, start, count, x_sb,
    x_sh, x_st, m_st, theta, eps,
    K: gl.constexpr, MAP: gl.constexpr, DIVIDED: gl.constexpr, NORMED: gl.constexpr, MASKED: gl.constexpr,
    REVERSE: gl.constexpr, BY_HAND: gl.constexpr,
):  # fmt: skip
    """Four warps: a Hᵀ, and what the chunk itself adds. A row of dq is a sum times 1/z, taken at the end."""
    step = C
    if REVERSE:
        step = -C
    cos_r, sin_r = clock(SUMS, theta)
    copy_in(d_a, s_a, arrived, 0, i_b, h_x, at_x + start - lead_x, True)
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), start + i * step, i % 2
        row, row_q, s_left = chunk - lead_x, chunk - lead, rows(s_a, now)
        copy_in(d_a, s_a, arrived, 1 - now, i_b, h_x, at_x + row + step, i + 1 < count)
        if DIVIDED and REVERSE:
            b_e = numerators(p_extra, p_z, rows_q, row_q, len_q, eps, SUMS)
        if NORMED:
            b_1 = gl.full([C, ONES], 1.0, BF16, LEFT)
            if not REVERSE:
                z = clamped(row_numbers(p_z, rows_q, row_q, len_q, LEFT1, 1.0), eps)
                b_e = row_numbers(p_extra, rows_q, row_q, len_q, LEFT1, 0.0) * z
                b_1 = gl.convert_layout(in_two_of_columns(b_e), LEFT, assert_trivial=True)
        cos, sin = phases(cos_r, sin_r, chunk, theta)
        if DIVIDED and not REVERSE:
            scale = 1 / clamped(row_numbers(p_z, rows_q, row_q, len_q, SUMS, 1.0), eps)
            cos, sin = cos * scale[:, None], sin * scale[:, None]
        s_hc0, s_hs0 = s_hc.index(at_0).slice(0, HALF).permute((1, 0)), s_hs.index(at_0).slice(0, HALF).permute((1, 0))
        s_hc1, s_hs1 = (
            s_hc.index(at_0).slice(HALF, HALF).permute((1, 0)), s_hs.index(at_0).slice(HALF, HALF).permute((1, 0)),
        )  # fmt: skip
        mbarrier.wait(arrived.index(now), (i // 2) & 1)
        mbarrier.wait(ready.index(0), i & 1)
        a = product(s_left, rows(s_c, now).permute((1, 0)))
        mbarrier.wait(ready_state.index(0), i & 1)
        xc, xs = product(s_left, s_hc0), product(s_left, s_hs0)
        if NORMED:
            xc = warpgroup_mma(b_1, s_nc.index(at_0).slice(0, HALF, 1), xc, is_async=True)
            xs = warpgroup_mma(b_1, s_ns.index(at_0).slice(0, HALF, 1), xs, is_async=True)
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        copy_in(d_x, s_x, own, 0, i_b, h_x, at_x + row, True)
        b_a = warpgroup_mma_wait(2 + 2 * NORMED, [a])
        if DIVIDED and REVERSE:
            b_a += b_e[None, :]
        elif DIVIDED:
            b_a += gl.convert_layout(b_e, gl.SliceLayout(1, SUMS), assert_trivial=True)[:, None]
        s_p.index(at_0).store(triangle(b_a, REVERSE))
        fence_async_shared()
        barrier()
        xc = warpgroup_mma(s_p.index(at_0), rows(s_b, now).slice(0, HALF, 1), xc, is_async=True)
        xs = warpgroup_mma(s_p.index(at_0), rows(s_bs, now).slice(0, HALF, 1), xs, is_async=True)
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        b_dx = b_xc * cos + b_xs * sin
        xc, xs = product(s_left, s_hc1), product(s_left, s_hs1)
        if NORMED:
            xc = warpgroup_mma(b_1, s_nc.index(at_0).slice(HALF, HALF, 1), xc, is_async=True)
            xs = warpgroup_mma(b_1, s_ns.index(at_0).slice(HALF, HALF, 1), xs, is_async=True)
        xc = warpgroup_mma(s_p.index(at_0), rows(s_b, now).slice(HALF, HALF, 1), xc, is_async=True)
        xs = warpgroup_mma(s_p.index(at_0), rows(s_bs, now).slice(HALF, HALF, 1), xs, is_async=True)
        mbarrier.wait(own.index(0), i & 1)
        keep_out = kept(p_mask, at_x + row, 0, last - chunk, m_st, SUMS, MASKED and REVERSE)
        s_half = rows(s_x, at_0).slice(0, HALF, 1)
        s_half.store(unmapped(b_dx, s_half, keep_out, MAP, MASKED and REVERSE))
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        barrier()
        mbarrier.arrive(free_state.index(0), count=1)
        mbarrier.arrive(free.index(now), count=1)
        s_half = rows(s_x, at_0).slice(HALF, HALF, 1)
        s_half.store(unmapped(b_xc * cos + b_xs * sin, s_half, keep_out, MAP, MASKED and REVERSE))
        fence_async_shared()
        barrier()
        write_rows(
            s_x.index(at_0), d_dx, p_dx, x_sb, x_sh, x_st, i_b, i_head, at_x + row, -row, last - lead_x - row, LINES4,
            K, BY_HAND,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit
def unmapped(g, s_x, keep, MAP: gl.constexpr, EDGED: gl.constexpr):
    """Of the gradient of φ(x) that of x."""
    if MAP != "identity":
        g = feature_map_gradient(g, s_x.load(SUMS).to(F32), MAP)
    if EDGED:
        g = gl.where(keep[:, None], g, 0.0)
    return g.to(BF16)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def values_walk(
    d_a, d_b, d_c, d_o, p_o, p_z, p_mask, p_h, p_h_out, p_cu_q, p_cu_k, p_slots, o_sb, o_sh, o_st, m_sb, m_st,
    heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, NORMED: gl.constexpr,
    DIVIDED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    REVERSE: gl.constexpr, SCALED: gl.constexpr, STATE_IN: gl.constexpr, STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Grid (slots · query heads). Forward: o and z. REVERSE: dv of each query head, c being do and SCALED by 1/z."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv, lead = i_head // GROUP, heads // GROUP, len_k - len_q
    # rows of a stand at position row + lead_a; those of b and c at row + lead_b
    h_a, h_b, at_a, at_b, lead_a, lead_b, len_b = i_head, i_kv, at_q, at_k, lead, 0, len_k
    at_state = slot * heads_kv + i_kv
    if REVERSE:
        h_a, h_b, at_a, at_b, lead_a, lead_b, len_b = i_kv, i_head, at_k, at_q, 0, lead, len_q
        at_state = slot * heads + i_head
    last = gl.minimum(first + stretch, len_k)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_a, s_o, s_b, s_bs, s_c = buffer(2, W), buffer(1, W), buffer(2, W), buffer(2, W), buffer(2, W)
    s_hc, s_hs, s_nc, s_ns = tile(W, W), tile(W, W), lying(ONES, W, 0.0), lying(ONES, W, 0.0)
    s_1, arrived, sources = lying(COLUMNS, C, 1.0), barriers(2), barriers(2)
    others, ready, ready_state, free_state, free = barriers(2), barriers(1), barriers(1), barriers(1), barriers(2)
    count = gl.cdiv(last - first, C)
    start = first
    if REVERSE:
        start = first + (count - 1) * C
    wanted_out = (last == len_k) & (i_head % GROUP == 0)
    gl.warp_specialize(
        [
            (
                walk_state,
                (
                    d_b, d_c, p_z, p_z, p_mask, p_h, p_h_out, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_nc, s_ns, sources,
                    others, ready, ready_state, free_state, free, i_b, h_b, at_b, lead_b, len_b, rows_q, at_state,
                    i_seq * heads_kv + i_kv, wanted_out, last, start, count, m_st, theta, eps, K, V, MAP, NORMED,
                    NORMED, MASKED, EDGED, REVERSE, SCALED, STATE_IN, STATE_OUT,
                ),
            ),
            (
                walk_values,
                (
                    d_a, d_o, p_o, p_z, p_mask, s_a, s_o, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_nc, s_ns, arrived, ready,
                    ready_state, free_state, free, i_b, h_a, i_head, at_a, lead_a, rows_q, last, start, count, o_sb,
                    o_sh, o_st, m_st, theta, eps, K, V, MAP, DIVIDED, MASKED, REVERSE, BY_HAND,
                ),
            ),
        ],
        [RESULT_WARPS],
        [RESULT_REGISTERS],
    )  # fmt: skip


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def features_walk(
    d_x, d_c, d_v, d_g, d_dx, p_dx, p_z, p_extra, p_mask, p_h, p_h_out, p_cu_q, p_cu_k, p_slots, x_sb, x_sh, x_st, m_sb,
    m_st, heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, DIVIDED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    REVERSE: gl.constexpr, STATE_IN: gl.constexpr, STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Grid (slots · query heads). dq: x = q, c = k. REVERSE, dk of each query head: x = k, c = q. d_g describes do.

    NORMED: the column of ones has a gradient; DIVIDED: o was divided by z, so that extra is that column's."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv, lead = i_head // GROUP, heads // GROUP, len_k - len_q
    h_x, h_b, at_x, at_b, lead_x, lead_b, len_b = i_head, i_kv, at_q, at_k, lead, 0, len_k
    at_state, d_left, d_right = slot * heads_kv + i_kv, d_g, d_v
    if REVERSE:
        h_x, h_b, at_x, at_b, lead_x, lead_b, len_b = i_kv, i_head, at_k, at_q, 0, lead, len_q
        at_state, d_left, d_right = slot * heads + i_head, d_v, d_g
    last = gl.minimum(first + stretch, len_k)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_x, s_a, s_b, s_bs, s_c = buffer(1, W), buffer(2, W), buffer(2, W), buffer(2, W), buffer(2, W)
    s_hc, s_hs, s_nc, s_ns = tile(W, W), tile(W, W), lying(ONES, W, 0.0), lying(ONES, W, 0.0)
    s_p = tile(C, HALF)
    s_1, arrived, own, sources = lying(COLUMNS, C, 1.0), barriers(2), barriers(1), barriers(2)
    others, ready, ready_state, free_state, free = barriers(2), barriers(1), barriers(1), barriers(1), barriers(2)
    count = gl.cdiv(last - first, C)
    start = first
    if REVERSE:
        start = first + (count - 1) * C
    gl.warp_specialize(
        [
            (
                walk_state,
                (
                    d_c, d_right, p_z, p_extra, p_mask, p_h, p_h_out, s_b, s_bs, s_c, s_1, s_hc, s_hs, s_nc, s_ns,
                    sources, others, ready, ready_state, free_state, free, i_b, h_b, at_b, lead_b, len_b, rows_q,
                    at_state, i_seq * heads + i_head, first == 0, last, start, count, m_st, theta, eps, K, V, MAP,
                    DIVIDED, NORMED, MASKED, EDGED, REVERSE, REVERSE and DIVIDED, STATE_IN, STATE_OUT,
                ),
            ),
            (
                walk_features,
                (
                    d_x, d_left, d_dx, p_dx, p_z, p_extra, p_mask, s_x, s_a, s_p, s_b, s_bs, s_c, s_hc, s_hs, s_nc,
                    s_ns, arrived, own, ready, ready_state, free_state, free, i_b, h_x, i_head, at_x, lead_x, lead,
                    len_q, rows_q, last, start, count, x_sb, x_sh, x_st, m_st, theta, eps, K, MAP, DIVIDED, NORMED,
                    MASKED, REVERSE, BY_HAND,
                ),
            ),
        ],
        [RESULT_WARPS],
        [RESULT_REGISTERS],
    )  # fmt: skip
