"""The walk for Hopper in bf16, heads up to 64: wgmma and the copy engine, spelt out in Gluon because Triton itself
waits for every product before it starts the next.

Positions count from the first source of a call, so no angle exceeds π/2. With Φ(x) = [φ(x) cos θp, φ(x) sin θp]

    forward          H = Σ Φ(k) ⊗ [v, 1]       [o z, z] = Φ(q) H + tril(Φ(q) Φ(k)ᵀ) [v, 1]
    backward_q       dΦ(q) = [do/z, −do·o/z] Hᵀ + tril(dA) Φ(k),    dA = do/z vᵀ − do·o/z
    backward_kv      G = Σ Φ(q) ⊗ [do/z, −do·o/z], against time

All are sums of Φ ⊗ values, so a term that multiplies φ(x) by something of its position (another angle, a decay) has one
place: `turned`. The column of ones that carries the denominator is 16 wide, the narrowest product there is.

A chunk is 64 positions. Its rows come through the copy engine into `STAGES` buffers while the one before is worked on;
the state's 2·K·V sums stay in registers, rounded to bf16 in shared memory once a chunk as operand of the next.

Names: i_ program index, d_ tensor descriptor, p_ address, s_ shared memory, b_ tile in registers, CAPITALS compile
time.
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

STAGES = gl.constexpr(2)
SUMS = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
SUMS1 = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16]))
LEFT = gl.constexpr(gl.DotOperandLayout(0, SUMS.value, 2))
LEFT1 = gl.constexpr(gl.DotOperandLayout(0, SUMS1.value, 2))
LINES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def as_left(x):
    """A column of row numbers of a result, as rows of an operand: the same threads hold them."""
    return gl.convert_layout(x, LEFT, assert_trivial=True)


@gluon.jit
def none():
    return gl.zeros([C, C], F32, SUMS)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def sum_kernel(
    d_b, d_c, p_z, p_extra, p_mask, p_h, p_cu_q, p_cu_k, p_slots, m_sb, m_st, heads, length_q, length_k, stretch,
    stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, QUERIES: gl.constexpr, SCALED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """State of each stretch. Grid (slots · heads). Keys: Σ Φ(b) ⊗ [c, 1]. QUERIES: Σ Φ(b) ⊗ [c / z, extra]."""
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
    s_b, s_c, bars = buffer(STAGES, C), buffer(STAGES, C), barriers(STAGES)
    s_bc, s_bs, s_v, s_1 = tile(C, C), tile(C, C), tile(C, C), narrow(C, 1.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, slot, C, SUMS, SUMS1, K, V, False, False)
    cos0, sin0 = clock(LINES, theta)
    count = gl.cdiv(last - first, C)
    mbarrier.expect(bars.index(0), 2 * C * C * 2)
    fetch(d_b, s_b, bars, 0, i_b, i_head, at + first - lead, True)
    fetch(d_c, s_c, bars, 0, i_b, i_head, at + first - lead, True)
    for i in range(count):
        at_0 = unknown_zero(i)
        chunk, now, then = first + i * C, i % STAGES, (i + 1) % STAGES
        row = chunk - lead
        mbarrier.wait(bars.index(now), (i // STAGES) & 1)
        keep = kept(p_mask, at + row, -row, gl.minimum(size, last - lead) - row, m_st, LINES, MASKED)
        b_b = mapped(rows(s_b, now).load(LINES), keep, LINES, K, MAP, EDGED)
        cos, sin = phases(cos0, sin0, chunk, theta)
        b_bc, b_bs = turned(b_b, cos, sin)
        barrier()  # no product of the chunk before reads these any more
        s_bc.index(at_0).store(b_bc)
        s_bs.index(at_0).store(b_bs)
        s_values = rows(s_c, now)
        if SCALED:
            z = row_numbers(p_z, rows_b, row, size, LINES, 1.0)
            b_c = s_values.load(LINES).to(F32) * (1 / clamped(z, eps))[:, None]
            s_v.index(at_0).store(gl.where(keep[:, None], b_c, 0.0).to(BF16))
        elif EDGED:
            s_v.index(at_0).store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        if QUERIES and NORMED:
            s_1.index(at_0).store(in_two(row_numbers(p_extra, rows_b, row, size, SUMS1, 0.0), SUMS1))
        fence_async_shared()
        barrier()
        mbarrier.expect(bars.index(then), 2 * C * C * 2, pred=i + 1 < count)
        fetch(d_b, s_b, bars, then, i_b, i_head, at + row + C, i + 1 < count)
        fetch(d_c, s_c, bars, then, i_b, i_head, at + row + C, i + 1 < count)
        if SCALED or EDGED:
            s_values = s_v.index(at_0)
        hc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_values, b_hc, is_async=True)
        hs = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_values, b_hs, is_async=True)
        if NORMED:
            nc = warpgroup_mma(s_bc.index(at_0).permute((1, 0)), s_1.index(at_0), b_nc, is_async=True)
            ns = warpgroup_mma(s_bs.index(at_0).permute((1, 0)), s_1.index(at_0), b_ns, is_async=True)
            b_nc, b_ns = warpgroup_mma_wait(0, [nc, ns])
        b_hc, b_hs = warpgroup_mma_wait(0, [hc, hs])
    if QUERIES and NORMED:  # its columns add up to the row; a state's are all the row
        b_nc, b_ns = b_nc * ONES, b_ns * ONES
    store_state(b_hc, b_hs, b_nc, b_ns, p_h, slot * heads + i_head, C, SUMS, SUMS1, K, V, NORMED)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def forward_kernel(
    d_q, d_k, d_v, d_o, p_o, p_z, p_mask, p_h, p_h_out, p_cu_q, p_cu_k, p_slots, o_sb, o_sh, o_st, m_sb, m_st,
    heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, NORMED: gl.constexpr,
    DIVIDED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    STATE_IN: gl.constexpr,
    STATE_OUT: gl.constexpr,
):  # fmt: skip
    """Grid (slots · heads). CAUSAL walks keys and queries together; else every query reads the state given."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv = i_head // GROUP, heads // GROUP
    lead, end, at_state = 0, len_q, i_seq
    if CAUSAL:
        lead, end, at_state = len_k - len_q, len_k, slot
    last = gl.minimum(first + stretch, end)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_q, bars, s_o = buffer(STAGES, C), barriers(STAGES), buffer(1, C).index(0)
    s_hc, s_hs, s_nc, s_ns = tile(C, C), tile(C, C), narrow(C, 0.0, SUMS1), narrow(C, 0.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state * heads_kv + i_kv, C, SUMS, SUMS1, K, V, STATE_IN, NORMED)
    s_hc.index(0).store(b_hc.to(BF16))
    s_hs.index(0).store(b_hs.to(BF16))
    if NORMED:
        s_nc.index(0).store(b_nc.to(BF16))
        s_ns.index(0).store(b_ns.to(BF16))
    cos_q, sin_q = clock(LEFT, theta)
    count = gl.cdiv(last - first, C)
    BYTES: gl.constexpr = (3 if CAUSAL else 1) * C * C * 2
    mbarrier.expect(bars.index(0), BYTES)
    fetch(d_q, s_q, bars, 0, i_b, i_head, at_q + first - lead, True)
    if CAUSAL:
        s_k, s_v, s_kc, s_ks, s_1 = buffer(STAGES, C), buffer(STAGES, C), tile(C, C), tile(C, C), narrow(C, 1.0, SUMS1)
        cos_k, sin_k = clock(LINES, theta)
        o_t, o_s = gl.arange(0, C, gl.SliceLayout(1, SUMS)), gl.arange(0, C, gl.SliceLayout(0, SUMS))
        fetch(d_k, s_k, bars, 0, i_b, i_kv, at_k + first, True)
        fetch(d_v, s_v, bars, 0, i_b, i_kv, at_k + first, True)
    for i in range(count):
        at_0 = unknown_zero(i)
        chunk, now, then = first + i * C, i % STAGES, (i + 1) % STAGES
        row = chunk - lead
        mbarrier.wait(bars.index(now), (i // STAGES) & 1)
        if CAUSAL:
            s_values = rows(s_v, now)
            keep = kept(p_mask, at_k + chunk, 0, last - chunk, m_st, LINES, MASKED)
            b_k = mapped(rows(s_k, now).load(LINES), keep, LINES, K, MAP, EDGED)
            cos, sin = phases(cos_k, sin_k, chunk, theta)
            b_kc, b_ks = turned(b_k, cos, sin)
            s_kc.index(at_0).store(b_kc)
            s_ks.index(at_0).store(b_ks)
            if EDGED:
                s_values.store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        all_rows = kept(p_mask, 0, 0, C, m_st, LEFT, False)
        b_q = mapped(rows(s_q, now).load(LEFT), all_rows, LEFT, K, MAP, False)
        cos, sin = phases(cos_q, sin_q, chunk, theta)
        b_qc, b_qs = turned(b_q, cos, sin)
        fence_async_shared()
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(then), BYTES, pred=more)
        fetch(d_q, s_q, bars, then, i_b, i_head, at_q + row + C, more)
        if CAUSAL:
            fetch(d_k, s_k, bars, then, i_b, i_kv, at_k + chunk + C, more)
            fetch(d_v, s_v, bars, then, i_b, i_kv, at_k + chunk + C, more)
        if i > 0:
            write_rows(s_o, d_o, p_o, o_sb, o_sh, o_st, i_b, i_head, at_q + row - C, C - row, C, LINES, V, BY_HAND)
        if CAUSAL:
            a = warpgroup_mma(b_qc, s_kc.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
            a = warpgroup_mma(b_qs, s_ks.index(at_0).permute((1, 0)), a, is_async=True)
        o = warpgroup_mma(b_qc, s_hc.index(at_0), none(), use_acc=False, is_async=True)
        o = warpgroup_mma(b_qs, s_hs.index(at_0), o, is_async=True)
        if DIVIDED:
            b_qc1 = gl.convert_layout(b_qc, LEFT1, assert_trivial=True)
            b_qs1 = gl.convert_layout(b_qs, LEFT1, assert_trivial=True)
            z = warpgroup_mma(b_qc1, s_nc.index(at_0), gl.zeros([C, ONES], F32, SUMS1), use_acc=False, is_async=True)
            z = warpgroup_mma(b_qs1, s_ns.index(at_0), z, is_async=True)
        if CAUSAL:
            hc = warpgroup_mma(s_kc.index(at_0).permute((1, 0)), s_values, b_hc, is_async=True)
            hs = warpgroup_mma(s_ks.index(at_0).permute((1, 0)), s_values, b_hs, is_async=True)
            if NORMED:
                nc = warpgroup_mma(s_kc.index(at_0).permute((1, 0)), s_1.index(at_0), b_nc, is_async=True)
                ns = warpgroup_mma(s_ks.index(at_0).permute((1, 0)), s_1.index(at_0), b_ns, is_async=True)
            b_a = warpgroup_mma_wait(4 + 2 * DIVIDED + 2 * NORMED, [a])
            b_a = gl.where(o_t[:, None] >= o_s[None, :], b_a, 0.0).to(BF16)
            o = warpgroup_mma(gl.convert_layout(b_a, LEFT, assert_trivial=True), s_values, o, is_async=True)
            if DIVIDED:
                z = warpgroup_mma(gl.convert_layout(b_a, LEFT1, assert_trivial=True), s_1.index(at_0), z, is_async=True)
            b_hc, b_hs = warpgroup_mma_wait(1 + DIVIDED, [hc, hs])
            if NORMED:
                b_nc, b_ns = warpgroup_mma_wait(1 + DIVIDED, [nc, ns])
        tma.store_wait(0)
        barrier()  # no product reads the state any more, nor the copy engine the last results
        if CAUSAL:
            s_hc.index(at_0).store(b_hc.to(BF16))
            s_hs.index(at_0).store(b_hs.to(BF16))
            if DIVIDED:
                s_nc.index(at_0).store(b_nc.to(BF16))
                s_ns.index(at_0).store(b_ns.to(BF16))
        b_o = warpgroup_mma_wait(0, [o])
        if DIVIDED:
            b_z = gl.sum(warpgroup_mma_wait(0, [z]), 1) * (1 / ONES)
            o_1 = row + gl.arange(0, C, gl.SliceLayout(1, SUMS1))
            gl.store(p_z + rows_q + o_1, b_z, mask=(o_1 >= 0) & (o_1 < last - lead))
            b_z = gl.convert_layout(1 / clamped(b_z, eps), gl.SliceLayout(1, SUMS), assert_trivial=True)
            b_o = b_o * b_z[:, None]
        s_o.reshape([C, C]).store(b_o.to(BF16))
    fence_async_shared()
    barrier()
    row = first + (count - 1) * C - lead
    write_rows(s_o, d_o, p_o, o_sb, o_sh, o_st, i_b, i_head, at_q + row, -row, last - lead - row, LINES, V, BY_HAND)
    if STATE_OUT:  # noqa: SIM102 one is known at compile time
        if (last == end) & (i_head % GROUP == 0):
            store_state(b_hc, b_hs, b_nc, b_ns, p_h_out, i_seq * heads_kv + i_kv, C, SUMS, SUMS1, K, V, NORMED)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def backward_q_kernel(
    d_q, d_k, d_v, d_o, d_g, d_dq, p_dq, p_z, p_extra, p_mask, p_h, p_cu_q, p_cu_k, p_slots, x_sb, x_sh, x_st, m_sb,
    m_st, heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, NORMED: gl.constexpr,
    MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, BY_HAND: gl.constexpr,
    STATE_IN: gl.constexpr,
):  # fmt: skip
    """dq, and extra = −do·o/z for the other kernels. Grid (slots · heads). d_g describes do. NORMED: o was divided."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MASKED or MAP == "elu1"
    i_kv, heads_kv = i_head // GROUP, heads // GROUP
    lead, end, at_state = 0, len_q, i_seq
    if CAUSAL:
        lead, end, at_state = len_k - len_q, len_k, slot
    last = gl.minimum(first + stretch, end)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_g, s_o, bars, s_q = buffer(STAGES, C), buffer(STAGES, C), barriers(STAGES + 1), buffer(1, C)
    s_hc, s_hs, s_nc, s_ns = tile(C, C), tile(C, C), narrow(C, 0.0, SUMS1), narrow(C, 0.0, SUMS1)
    b_hc, b_hs, b_nc, b_ns = load_state(p_h, at_state * heads_kv + i_kv, C, SUMS, SUMS1, K, V, STATE_IN, NORMED)
    s_hc.index(0).store(b_hc.to(BF16))
    s_hs.index(0).store(b_hs.to(BF16))
    if NORMED:
        s_nc.index(0).store(b_nc.to(BF16))
        s_ns.index(0).store(b_ns.to(BF16))
    cos_q, sin_q = clock(SUMS, theta)
    o_t = gl.arange(0, C, gl.SliceLayout(1, SUMS))
    count = gl.cdiv(last - first, C)
    BYTES: gl.constexpr = (1 + NORMED + 2 * CAUSAL) * C * C * 2
    mbarrier.expect(bars.index(0), BYTES)
    fetch(d_g, s_g, bars, 0, i_b, i_head, at_q + first - lead, True)
    if NORMED:
        fetch(d_o, s_o, bars, 0, i_b, i_head, at_q + first - lead, True)
        z_next = row_numbers(p_z, rows_q, first - lead, len_q, LEFT, 1.0)
    if CAUSAL:
        s_k, s_v, s_kc, s_ks, s_1 = buffer(STAGES, C), buffer(STAGES, C), tile(C, C), tile(C, C), narrow(C, 1.0, SUMS1)
        cos_k, sin_k = clock(LINES, theta)
        o_s = gl.arange(0, C, gl.SliceLayout(0, SUMS))
        fetch(d_k, s_k, bars, 0, i_b, i_kv, at_k + first, True)
        fetch(d_v, s_v, bars, 0, i_b, i_kv, at_k + first, True)
    for i in range(count):
        at_0 = unknown_zero(i)
        chunk, now, then = first + i * C, i % STAGES, (i + 1) % STAGES
        row = chunk - lead
        mbarrier.wait(bars.index(now), (i // STAGES) & 1)
        if CAUSAL:
            s_values = rows(s_v, now)
            keep = kept(p_mask, at_k + chunk, 0, last - chunk, m_st, LINES, MASKED)
            b_k = mapped(rows(s_k, now).load(LINES), keep, LINES, K, MAP, EDGED)
            cos, sin = phases(cos_k, sin_k, chunk, theta)
            b_kc, b_ks = turned(b_k, cos, sin)
            s_kc.index(at_0).store(b_kc)
            s_ks.index(at_0).store(b_ks)
            if EDGED:
                s_values.store(gl.where(keep[:, None], s_values.load(LINES).to(F32), 0.0).to(BF16))
        b_g = rows(s_g, now).load(LEFT).to(F32)
        if NORMED:
            scale = 1 / clamped(z_next, eps)
            b_e = -gl.sum(b_g * rows(s_o, now).load(LEFT).to(F32), 1) * scale
            b_e = gl.where(gl.abs(z_next) < eps, 0.0, b_e)
            o_c = row + gl.arange(0, C, gl.SliceLayout(1, LEFT))
            gl.store(p_extra + rows_q + o_c, b_e, mask=(o_c >= 0) & (o_c < last - lead))
            b_g = b_g * scale[:, None]
            b_e1 = in_two(gl.convert_layout(b_e, gl.SliceLayout(1, LEFT1), assert_trivial=True), LEFT1)
            b_e = gl.convert_layout(b_e, gl.SliceLayout(1, SUMS), assert_trivial=True)
        b_g = b_g.to(BF16)
        fence_async_shared()
        tma.store_wait(0)
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(STAGES), C * C * 2)
        tma.async_copy_global_to_shared(d_q, [i_b, i_head, at_q + row, 0], bars.index(STAGES), s_q.index(0))
        mbarrier.expect(bars.index(then), BYTES, pred=more)
        fetch(d_g, s_g, bars, then, i_b, i_head, at_q + row + C, more)
        if NORMED:
            fetch(d_o, s_o, bars, then, i_b, i_head, at_q + row + C, more)
            z_next = row_numbers(p_z, rows_q, row + C, len_q, LEFT, 1.0)
        if CAUSAL:
            fetch(d_k, s_k, bars, then, i_b, i_kv, at_k + chunk + C, more)
            fetch(d_v, s_v, bars, then, i_b, i_kv, at_k + chunk + C, more)
            a = warpgroup_mma(b_g, s_values.permute((1, 0)), none(), use_acc=False, is_async=True)
        qc = warpgroup_mma(b_g, s_hc.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
        qs = warpgroup_mma(b_g, s_hs.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
        if NORMED:
            b_e1 = gl.convert_layout(b_e1, LEFT, assert_trivial=True)
            qc = warpgroup_mma(b_e1, s_nc.index(at_0).permute((1, 0)), qc, is_async=True)
            qs = warpgroup_mma(b_e1, s_ns.index(at_0).permute((1, 0)), qs, is_async=True)
        if CAUSAL:
            hc = warpgroup_mma(s_kc.index(at_0).permute((1, 0)), s_values, b_hc, is_async=True)
            hs = warpgroup_mma(s_ks.index(at_0).permute((1, 0)), s_values, b_hs, is_async=True)
            if NORMED:
                nc = warpgroup_mma(s_kc.index(at_0).permute((1, 0)), s_1.index(at_0), b_nc, is_async=True)
                ns = warpgroup_mma(s_ks.index(at_0).permute((1, 0)), s_1.index(at_0), b_ns, is_async=True)
            b_a = warpgroup_mma_wait(4 + 4 * NORMED, [a])
            if NORMED:
                b_a = b_a + b_e[:, None]
            b_a = gl.where(o_t[:, None] >= o_s[None, :], b_a, 0.0).to(BF16)
            b_a = gl.convert_layout(b_a, LEFT, assert_trivial=True)
            qc = warpgroup_mma(b_a, s_kc.index(at_0), qc, is_async=True)
            qs = warpgroup_mma(b_a, s_ks.index(at_0), qs, is_async=True)
            b_hc, b_hs = warpgroup_mma_wait(2, [hc, hs])
            if NORMED:
                b_nc, b_ns = warpgroup_mma_wait(2, [nc, ns])
        b_qc, b_qs = warpgroup_mma_wait(0, [qc, qs])
        if CAUSAL:
            barrier()  # no product reads the state any more
            s_hc.index(at_0).store(b_hc.to(BF16))
            s_hs.index(at_0).store(b_hs.to(BF16))
            if NORMED:
                s_nc.index(at_0).store(b_nc.to(BF16))
                s_ns.index(at_0).store(b_ns.to(BF16))
        cos, sin = phases(cos_q, sin_q, chunk, theta)
        mbarrier.wait(bars.index(STAGES), i & 1)
        b_dq = b_qc * cos + b_qs * sin
        if MAP != "identity":
            b_dq = feature_map_gradient(b_dq, rows(s_q, 0).load(SUMS).to(F32), MAP)
        rows(s_q, 0).store(b_dq.to(BF16))
        fence_async_shared()
        barrier()
        write_rows(
            s_q.index(0), d_dq, p_dq, x_sb, x_sh, x_st, i_b, i_head, at_q + row, -row, last - lead - row, LINES, K,
            BY_HAND,
        )  # fmt: skip
    tma.store_wait(0)


@gluon.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=["p_mask"])
def backward_kv_kernel(
    d_q, d_k, d_v, d_g, d_dk, d_dv, p_dk, p_dv, p_z, p_extra, p_mask, p_h, p_h_out, p_cu_q, p_cu_k,
    p_slots, dk_sh, dk_st, dv_sh, dv_st, m_sb, m_st, heads, length_q, length_k, stretch, stretches, theta, eps,
    K: gl.constexpr, V: gl.constexpr, MAP: gl.constexpr, GROUP: gl.constexpr, DIVIDED: gl.constexpr,
    NORMED: gl.constexpr, MASKED: gl.constexpr, PACKED: gl.constexpr, CAUSAL: gl.constexpr, STATE_IN: gl.constexpr,
    STATE_OUT: gl.constexpr,
):  # fmt: skip
    """dk and dv of each query head, against time. Grid (slots · heads). NORMED: the column of ones has a gradient."""
    i_head, i_b, i_seq, slot, at_q, at_k, len_q, len_k, first = where_is(
        gl.program_id(0), heads, length_q, length_k, stretch, stretches, p_cu_q, p_cu_k, p_slots, PACKED
    )
    EDGED: gl.constexpr = PACKED or MAP == "elu1"
    i_kv = i_head // GROUP
    lead, at_state = 0, i_seq
    if CAUSAL:
        lead, at_state = len_k - len_q, slot
    last = gl.minimum(first + stretch, len_k)
    rows_q = (i_b * heads + i_head).to(gl.int64) * length_q + at_q
    if MASKED:
        p_mask += i_b.to(gl.int64) * m_sb
    s_k, s_v, bars = buffer(STAGES, C), buffer(STAGES, C), barriers(STAGES)
    s_gc, s_gs, s_ec, s_es = tile(C, C), tile(C, C), narrow(C, 0.0, SUMS1), narrow(C, 0.0, SUMS1)
    b_gc, b_gs, b_ec, b_es = load_state(p_h, at_state * heads + i_head, C, SUMS, SUMS1, K, V, STATE_IN, NORMED)
    b_ec, b_es = b_ec * (1 / ONES), b_es * (1 / ONES)  # here the columns add up to the row
    s_gc.index(0).store(b_gc.to(BF16))
    s_gs.index(0).store(b_gs.to(BF16))
    if NORMED:
        s_ec.index(0).store(b_ec.to(BF16))
        s_es.index(0).store(b_es.to(BF16))
        b_1 = gl.full([C, ONES], 1.0, BF16, LEFT)
    cos_k, sin_k = clock(SUMS, theta)
    o_s, o_t = gl.arange(0, C, gl.SliceLayout(1, SUMS)), gl.arange(0, C, gl.SliceLayout(0, SUMS))
    count = gl.cdiv(last - first, C)
    BYTES: gl.constexpr = (4 if CAUSAL else 2) * C * C * 2
    start = first + (count - 1) * C
    mbarrier.expect(bars.index(0), BYTES)
    fetch(d_k, s_k, bars, 0, i_b, i_kv, at_k + start, True)
    fetch(d_v, s_v, bars, 0, i_b, i_kv, at_k + start, True)
    s_g = buffer(STAGES, C)
    if CAUSAL:
        s_q, s_qc, s_qs, s_dn, s_e = buffer(STAGES, C), tile(C, C), tile(C, C), tile(C, C), narrow(C, 0.0, SUMS1)
        cos_q, sin_q = clock(LINES, theta)
        fetch(d_q, s_q, bars, 0, i_b, i_head, at_q + start - lead, True)
        fetch(d_g, s_g, bars, 0, i_b, i_head, at_q + start - lead, True)
        if DIVIDED:
            z_next = row_numbers(p_z, rows_q, start - lead, len_q, LINES, 1.0)
            e_next = row_numbers(p_extra, rows_q, start - lead, len_q, SUMS1, 0.0)
    for i in range(count):
        at_0 = unknown_zero(i)
        chunk, now, then = start - i * C, i % STAGES, (i + 1) % STAGES
        row = chunk - lead
        mbarrier.wait(bars.index(now), (i // STAGES) & 1)
        s_values = rows(s_v, now)
        if CAUSAL:
            keep = kept(p_mask, 0, -row, len_q - row, m_st, LINES, False)
            b_q = mapped(rows(s_q, now).load(LINES), keep, LINES, K, MAP, EDGED)
            cos, sin = phases(cos_q, sin_q, chunk, theta)
            b_qc, b_qs = turned(b_q, cos, sin)
            s_qc.index(at_0).store(b_qc)
            s_qs.index(at_0).store(b_qs)
            b_dn = rows(s_g, now).load(LINES).to(F32)
            if DIVIDED:
                b_dn = b_dn * (1 / clamped(z_next, eps))[:, None]
                s_e.index(at_0).store(in_two(e_next, SUMS1))
            if EDGED:
                b_dn = gl.where(keep[:, None], b_dn, 0.0)
            s_dn.index(at_0).store(b_dn.to(BF16))
        all_rows = kept(p_mask, 0, 0, C, m_st, LEFT, False)
        b_k = mapped(rows(s_k, now).load(LEFT), all_rows, LEFT, K, MAP, False)
        cos_out, sin_out = phases(cos_k, sin_k, chunk, theta)
        cos, sin = as_left(cos_out), as_left(sin_out)
        b_kc, b_ks = turned(b_k, cos, sin)
        fence_async_shared()
        tma.store_wait(0)
        barrier()
        more = i + 1 < count
        mbarrier.expect(bars.index(then), BYTES, pred=more)
        fetch(d_k, s_k, bars, then, i_b, i_kv, at_k + chunk - C, more)
        fetch(d_v, s_v, bars, then, i_b, i_kv, at_k + chunk - C, more)
        if CAUSAL:
            fetch(d_q, s_q, bars, then, i_b, i_head, at_q + row - C, more)
            fetch(d_g, s_g, bars, then, i_b, i_head, at_q + row - C, more)
            if DIVIDED:
                z_next = row_numbers(p_z, rows_q, row - C, len_q, LINES, 1.0)
                e_next = row_numbers(p_extra, rows_q, row - C, len_q, SUMS1, 0.0)
            a = warpgroup_mma(b_kc, s_qc.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
            a = warpgroup_mma(b_ks, s_qs.index(at_0).permute((1, 0)), a, is_async=True)
        dv = warpgroup_mma(b_kc, s_gc.index(at_0), none(), use_acc=False, is_async=True)
        dv = warpgroup_mma(b_ks, s_gs.index(at_0), dv, is_async=True)
        if CAUSAL:
            b_a = warpgroup_mma_wait(2, [a])
            b_a = gl.where(o_t[None, :] >= o_s[:, None], b_a, 0.0).to(BF16)
            dv = warpgroup_mma(gl.convert_layout(b_a, LEFT, assert_trivial=True), s_dn.index(at_0), dv, is_async=True)
            da = warpgroup_mma(s_values, s_dn.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
            if DIVIDED:
                da = warpgroup_mma(b_1, s_e.index(at_0).permute((1, 0)), da, is_async=True)
            b_dv = warpgroup_mma_wait(1 + DIVIDED, [dv])
        else:
            b_dv = warpgroup_mma_wait(0, [dv])
        if MASKED:
            keep_out = kept(p_mask, at_k + chunk, 0, last - chunk, m_st, SUMS, True)
            b_dv = gl.where(keep_out[:, None], b_dv, 0.0)
        rows(s_g, now).store(b_dv.to(BF16))
        kc = warpgroup_mma(s_values, s_gc.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
        ks = warpgroup_mma(s_values, s_gs.index(at_0).permute((1, 0)), none(), use_acc=False, is_async=True)
        if NORMED:
            kc = warpgroup_mma(b_1, s_ec.index(at_0).permute((1, 0)), kc, is_async=True)
            ks = warpgroup_mma(b_1, s_es.index(at_0).permute((1, 0)), ks, is_async=True)
        if CAUSAL:
            gc = warpgroup_mma(s_qc.index(at_0).permute((1, 0)), s_dn.index(at_0), b_gc, is_async=True)
            gs = warpgroup_mma(s_qs.index(at_0).permute((1, 0)), s_dn.index(at_0), b_gs, is_async=True)
            if DIVIDED:
                ec = warpgroup_mma(s_qc.index(at_0).permute((1, 0)), s_e.index(at_0), b_ec, is_async=True)
                es = warpgroup_mma(s_qs.index(at_0).permute((1, 0)), s_e.index(at_0), b_es, is_async=True)
            b_a = warpgroup_mma_wait(4 + 2 * NORMED + 2 * DIVIDED, [da])
            b_a = gl.where(o_t[None, :] >= o_s[:, None], b_a, 0.0).to(BF16)
            b_a = gl.convert_layout(b_a, LEFT, assert_trivial=True)
            kc = warpgroup_mma(b_a, s_qc.index(at_0), kc, is_async=True)
            ks = warpgroup_mma(b_a, s_qs.index(at_0), ks, is_async=True)
            b_gc, b_gs = warpgroup_mma_wait(2, [gc, gs])
            if DIVIDED:
                b_ec, b_es = warpgroup_mma_wait(2, [ec, es])
        b_kc, b_ks = warpgroup_mma_wait(0, [kc, ks])
        if CAUSAL:
            barrier()  # no product reads the state any more
            s_gc.index(at_0).store(b_gc.to(BF16))
            s_gs.index(at_0).store(b_gs.to(BF16))
            if DIVIDED:
                s_ec.index(at_0).store(b_ec.to(BF16))
                s_es.index(at_0).store(b_es.to(BF16))
        b_dk = b_kc * cos_out + b_ks * sin_out
        if MAP != "identity":
            b_dk = feature_map_gradient(b_dk, rows(s_k, now).load(SUMS).to(F32), MAP)
        if MASKED:
            b_dk = gl.where(keep_out[:, None], b_dk, 0.0)
        rows(s_k, now).store(b_dk.to(BF16))
        fence_async_shared()
        barrier()
        left, no = last - chunk, dk_sh * 0  # a packed row is the only one of its batch
        write_rows(s_k.index(now), d_dk, p_dk, no, dk_sh, dk_st, i_b, i_head, at_k + chunk, 0, left, LINES, K, PACKED)
        write_rows(s_g.index(now), d_dv, p_dv, no, dv_sh, dv_st, i_b, i_head, at_k + chunk, 0, left, LINES, V, PACKED)
    if STATE_OUT:  # noqa: SIM102
        if first == 0:
            store_state(
                b_gc, b_gs, b_ec * ONES, b_es * ONES, p_h_out, i_seq * heads + i_head, C, SUMS, SUMS1, K, V, NORMED
            )  # fmt: skip
    tma.store_wait(0)
