"""Heads of 65 to 128 on Hopper in bf16: sums over stretches, and full attention, where the state is known before.

As hopper_kernels.py, for tiles of 64 × 128 and two warpgroups. The causal walk is hopper_wide_walk.py.
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
    feature_map_gradient,
    fetch,
    in_two,
    kept,
    load_state,
    mapped,
    narrow,
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
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 64, 16]))
SUMS1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 2], [16, 16, 16]))  # the same in both warpgroups
LINES = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [8, 1], [1, 0]))
REGISTERS = {"values_kernel": 128, "features_kernel": 128}  # at most, so that two programs share a processor


@gluon.jit
def nothing():
    return gl.zeros([C, W], F32, SUMS)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def wide_sum_kernel(
    d_b, d_c, p_z, p_extra, p_mask, p_h, p_cu_q, p_cu_k, p_slots, m_sb, m_st, heads, length_q, length_k, stretch,
    stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, QUERIES: gl.constexpr, SCALED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """As sum_kernel."""
    i_head, i_b, _, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    at, size, lead, length = at_k, len_k, 0, length_k
    if QUERIES:
        at, size, length = at_q, len_q, length_q
        if CAUSAL:
            lead = len_k - len_q
    last = gl.minimum(first + stretch, size + lead)
    rows_b = (i_b * heads + i_head).to(gl.int64) * length + at
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_b, s_c, bars = buffer(1, W), buffer(2, W), barriers(1)
    s_bc, s_bs, s_1 = tile(C, W), tile(C, W), narrow(C, 1.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, slot, W, SUMS, SUMS1, K, V, False, False)
    cos0, sin0 = clock(LINES, theta)
    count = gl.cdiv(last - first, C)
    mbarrier.expect(bars.index(0), 2 * C * W * 2)
    tma.async_copy_global_to_shared(d_b, [i_b, i_head, at + first - lead, 0], bars.index(0), s_b.index(0))
    tma.async_copy_global_to_shared(d_c, [i_b, i_head, at + first - lead, 0], bars.index(0), s_c.index(0))
    for i in range(count):
        at_0, chunk, now = unknown_zero(i), first + i * C, i % 2
        row = chunk - lead
        mbarrier.wait(bars.index(0), i & 1)
        keep = kept(p_mask, at + row, -row, gl.minimum(size, last - lead) - row, m_st, LINES, MASKED)
        b_b = mapped(rows(s_b, 0).load(LINES), keep, LINES, K, MAP, EDGED)
        cos, sin = phases(cos0, sin0, chunk, theta)
        b_bc, b_bs = turned(b_b, cos, sin)
        s_bc.index(at_0).store(b_bc)
        s_bs.index(at_0).store(b_bs)
        s_values = rows(s_c, now)
        if SCALED:
            z = row_numbers(p_z, rows_b, row, size, LINES, 1.0)
            b_c = s_values.load(LINES).to(F32) * (1 / clamped(z, eps))[:, None]
            s_values.store(gl.where(keep[:, None], b_c, 0.0).to(BF16))
        elif EDGED:
            s_values.store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        if QUERIES and NORMED:
            s_1.index(at_0).store(in_two(row_numbers(p_extra, rows_b, row, size, SUMS1, 0.0), SUMS1))
        fence_async_shared()
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(0), 2 * C * W * 2, pred=more)
        tma.async_copy_global_to_shared(
            d_b, [i_b, i_head, at + row + C, 0], bars.index(0), s_b.index(0), pred=more
        )  # fmt: skip
        tma.async_copy_global_to_shared(
            d_c, [i_b, i_head, at + row + C, 0], bars.index(0), s_c.index(1 - now), pred=more
        )  # fmt: skip
        hc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_values, b_hc, is_async=True)
        hs = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_values, b_hs, is_async=True)
        if NORMED:
            nc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_1.index(at_0), b_nc, is_async=True)
            ns = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_1.index(at_0), b_ns, is_async=True)
            b_nc, b_ns = warpgroup_mma_wait(0, [nc, ns])
        b_hc, b_hs = warpgroup_mma_wait(0, [hc, hs])
        barrier()  # no product reads the tiles any more
    if QUERIES and NORMED:  # its columns add up to the row; a state's are all the row
        b_nc, b_ns = b_nc * ONES, b_ns * ONES
    store_state(b_hc, b_hs, b_nc, b_ns, p_h, slot * heads + i_head, W, SUMS, SUMS1, K, V, NORMED)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def values_kernel(
    d_a, d_o, p_o, p_z, p_mask, p_h, p_cu_q, p_cu_k, p_slots, o_sb, o_sh, o_st, m_sb, m_st, heads, length_q, length_k,
    stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, DIVIDED: gl.constexpr,
    MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr, REVERSE: gl.constexpr,
):  # fmt: skip
    """Grid (slots · query heads). Φ(a) H: o and z, with a = q; REVERSE, dv of each query head, with a = k."""
    i_head, i_b, i_seq, _, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    i_kv, heads_kv = i_head // GROUP, heads // GROUP
    h_a, at_a, end, at_state = i_head, at_q, len_q, i_seq * heads_kv + i_kv
    if REVERSE:
        h_a, at_a, end, at_state = i_kv, at_k, len_k, i_seq * heads + i_head
    last = gl.minimum(first + stretch, end)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_a, bars = buffer(2, W), barriers(2)
    s_hc, s_hs, s_nc, s_ns = tile(W, W), tile(W, W), narrow(W, 0.0, SUMS1), narrow(W, 0.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state, W, SUMS, SUMS1, K, V, True, DIVIDED)
    s_hc.index(0).store(b_hc.to(BF16))
    s_hs.index(0).store(b_hs.to(BF16))
    if DIVIDED:
        s_nc.index(0).store(b_nc.to(BF16))
        s_ns.index(0).store(b_ns.to(BF16))
    cos0, sin0 = clock(SUMS, theta)
    count = gl.cdiv(last - first, C)
    mbarrier.expect(bars.index(0), C * W * 2)
    fetch(d_a, s_a, bars, 0, i_b, h_a, at_a + first, True)
    for i in range(count):
        at_0, row, now = unknown_zero(i), first + i * C, i % 2
        more, s_left = i + 1 < count, rows(s_a, now)
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        mbarrier.expect(bars.index(1 - now), C * W * 2, pred=more)
        fetch(d_a, s_a, bars, 1 - now, i_b, h_a, at_a + row + C, more)
        mbarrier.wait(bars.index(now), (i // 2) & 1)
        if MAP != "identity":
            all_rows = kept(p_mask, 0, 0, C, m_st, LINES, False)
            s_left.store(mapped(s_left.load(LINES), all_rows, LINES, K, MAP, False).to(BF16))
        fence_async_shared()
        barrier()
        oc = warpgroup_mma(s_left, s_hc.index(at_0), nothing(), use_acc=False, is_async=True)
        os = warpgroup_mma(s_left, s_hs.index(at_0), nothing(), use_acc=False, is_async=True)
        if DIVIDED:
            none1 = gl.zeros([C, ONES], F32, SUMS1)
            zc = warpgroup_mma(s_left, s_nc.index(at_0), none1, use_acc=False, is_async=True)
            zs = warpgroup_mma(s_left, s_ns.index(at_0), none1, use_acc=False, is_async=True)
        cos, sin = phases(cos0, sin0, row, theta)
        b_oc, b_os = warpgroup_mma_wait(2 * DIVIDED, [oc, os])
        b_o = b_oc * cos + b_os * sin
        if DIVIDED:
            b_zc, b_zs = warpgroup_mma_wait(0, [zc, zs])
            b_z = b_zc * gl.convert_layout(cos, SUMS1) + b_zs * gl.convert_layout(sin, SUMS1)
            b_z = gl.sum(b_z, 1) * (1 / ONES)
            o_1 = row + gl.arange(0, C, gl.SliceLayout(1, SUMS1))
            gl.store(p_z + rows_q + o_1, b_z, mask=o_1 < last)
            b_o = b_o * gl.convert_layout(1 / clamped(b_z, eps), gl.SliceLayout(1, SUMS))[:, None]
        if REVERSE and MASKED:  # the gradient of a masked value is 0
            keep_out = kept(p_mask, at_a + row, 0, last - row, m_st, SUMS, True)
            b_o = gl.where(keep_out[:, None], b_o, 0.0)
        barrier()  # no product reads the tile any more
        s_left.store(b_o.to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_a.index(now), d_o, p_o, o_sb, o_sh, o_st, i_b, i_head, at_a + row, 0, last - row, LINES, V, BY_HAND
        )
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def features_kernel(
    d_x, d_a, d_dx, p_dx, p_z, p_extra, p_mask, p_h, p_cu_q, p_cu_k, p_slots, x_sb, x_sh, x_st, m_sb, m_st, heads,
    length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, DIVIDED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    REVERSE: gl.constexpr,
):  # fmt: skip
    """Grid (slots · query heads). a Hᵀ, turned back: dq, with x = q, a = do, times 1/z at the end; REVERSE, dk of each
    query head, with x = k, a = v."""
    i_head, i_b, i_seq, _, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    i_kv, heads_kv = i_head // GROUP, heads // GROUP
    h_x, at_x, end, at_state = i_head, at_q, len_q, i_seq * heads_kv + i_kv
    if REVERSE:
        h_x, at_x, end, at_state = i_kv, at_k, len_k, i_seq * heads + i_head
    last = gl.minimum(first + stretch, end)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_x, s_a, bars = buffer(1, W), buffer(1, W), barriers(2)
    s_hc, s_hs, s_nc, s_ns = tile(W, W), tile(W, W), narrow(W, 0.0, SUMS1), narrow(W, 0.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state, W, SUMS, SUMS1, K, V, True, NORMED)
    if REVERSE:  # here the columns add up to the row
        b_nc, b_ns = b_nc * (1 / ONES), b_ns * (1 / ONES)
    s_hc.index(0).store(b_hc.to(BF16))
    s_hs.index(0).store(b_hs.to(BF16))
    if NORMED:
        s_nc.index(0).store(b_nc.to(BF16))
        s_ns.index(0).store(b_ns.to(BF16))
    cos_x, sin_x = clock(SUMS, theta)
    count = gl.cdiv(last - first, C)
    s_1 = narrow(C, 1.0, SUMS1)
    mbarrier.expect(bars.index(0), C * W * 2)
    fetch(d_a, s_a, bars, 0, i_b, h_x, at_x + first, True)
    for i in range(count):
        at_0, row, more, s_left = unknown_zero(i), first + i * C, i + 1 < count, rows(s_a, 0)
        tma.store_wait(0)
        barrier()  # the copy engine is through with the last results
        mbarrier.expect(bars.index(1), C * W * 2)
        tma.async_copy_global_to_shared(d_x, [i_b, h_x, at_x + row, 0], bars.index(1), s_x.index(0))
        cos, sin = phases(cos_x, sin_x, row, theta)
        if DIVIDED and not REVERSE:
            scale = 1 / clamped(row_numbers(p_z, rows_q, row, len_q, SUMS, 1.0), eps)
            cos, sin = cos * scale[:, None], sin * scale[:, None]
            b_e = row_numbers(p_extra, rows_q, row, len_q, SUMS1, 0.0)
            b_e = b_e * clamped(row_numbers(p_z, rows_q, row, len_q, SUMS1, 1.0), eps)
            s_1.index(at_0).store(in_two(b_e, SUMS1))
            fence_async_shared()
        mbarrier.wait(bars.index(0), i & 1)
        barrier()
        xc = warpgroup_mma(s_left, s_hc.index(at_0).permute((1, 0)), nothing(), use_acc=False, is_async=True)
        xs = warpgroup_mma(s_left, s_hs.index(at_0).permute((1, 0)), nothing(), use_acc=False, is_async=True)
        if NORMED:
            xc = warpgroup_mma(s_1.index(at_0), s_nc.index(at_0).permute((1, 0)), xc, is_async=True)
            xs = warpgroup_mma(s_1.index(at_0), s_ns.index(at_0).permute((1, 0)), xs, is_async=True)
        b_xc, b_xs = warpgroup_mma_wait(0, [xc, xs])
        barrier()  # no product reads the tile any more
        mbarrier.expect(bars.index(0), C * W * 2, pred=more)
        fetch(d_a, s_a, bars, 0, i_b, h_x, at_x + row + C, more)
        mbarrier.wait(bars.index(1), i & 1)
        b_dx = b_xc * cos + b_xs * sin
        if MAP != "identity":
            b_dx = feature_map_gradient(b_dx, rows(s_x, 0).load(SUMS).to(F32), MAP)
        if REVERSE and MASKED:
            keep_out = kept(p_mask, at_x + row, 0, last - row, m_st, SUMS, True)
            b_dx = gl.where(keep_out[:, None], b_dx, 0.0)
        rows(s_x, 0).store(b_dx.to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_x.index(0), d_dx, p_dx, x_sb, x_sh, x_st, i_b, i_head, at_x + row, 0, last - row, LINES, K, BY_HAND
        )
    tma.store_wait(0)
