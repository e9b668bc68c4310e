"""One walk along time, as in ops/chunked.py and ops/cpu/walk.cpp, fused: feature map, phases, masks and normaliser in
registers.

    out[t] = Σ_s cos(θ(t − s)) (a[t]·b[s] + α[t] β[s]) c[s]        and, forward, z[t] = the same sum with c = 1

A program owns one head of one stretch of one sequence and a block of BO columns of c. It keeps the state
H = Σ_s [b cos θf, b sin θf] ⊗ c in registers, f counted from the start of a frame; α β is the rank-one part the
gradients need ([do/z, −(do·o)/z] against [v, 1]), kept apart so that widths stay powers of two.

Names: i_ program index, o_ offsets, m_ mask, p_ address, b_ tile in registers, CAPITALS compile-time.
"""

import triton
import triton.language as tl

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)


@triton.jit
def rounded(x, DOT: tl.constexpr):
    """An operand of tl.dot. The interpreter cannot multiply bf16: there it is rounded to bf16 and multiplied in fp32,
    which is what the hardware does."""
    x = x.to(DOT)
    if INTERPRETED:
        x = x.to(tl.float32)
    return x


@triton.jit
def feature_map(x, MAP: tl.constexpr):
    if MAP == "relu":
        x = tl.where(x < 0, 0.0, x)  # in this order a NaN passes through
    elif MAP == "leaky_relu":
        x = tl.where(x < 0, 0.01 * x, x)
    elif MAP == "elu1":
        x = tl.where(x > 0, x + 1, tl.exp(tl.minimum(x, 0.0)))
    elif MAP == "silu":
        x = x / (1 + tl.exp(-x))
    return x


@triton.jit
def feature_map_gradient(x, MAP: tl.constexpr):
    if MAP == "relu":
        g = tl.where(x <= 0, 0.0, 1.0)
    elif MAP == "leaky_relu":
        g = tl.where(x <= 0, 0.01, 1.0)
    elif MAP == "elu1":
        g = tl.exp(tl.minimum(x, 0.0))
    elif MAP == "silu":
        s = 1 / (1 + tl.exp(-x))
        g = s * (1 + x * (1 - s))
    else:
        g = x * 0 + 1
    return g


@triton.jit
def load_rows(p, stride_t, stride_d, o_t, o_d, m_t, D: tl.constexpr):
    """Rows o_t and columns o_d < D as fp32, zeros elsewhere."""
    mask = m_t[:, None] & (o_d < D)[None, :]
    return tl.load(p + o_t[:, None].to(tl.int64) * stride_t + o_d[None, :] * stride_d, mask=mask, other=0.0).to(
        tl.float32
    )


@triton.jit
def walk_kernel(
    p_a, p_b, p_c, p_out, p_x, p_scale, p_column, p_z, p_mask, p_state_in, p_norm_in, p_state_out, p_norm_out,
    p_cos, p_sin, p_cu_a, p_cu_b,
    a_sb, a_sh, a_st, a_sd, b_sb, b_sh, b_st, b_sd, c_sb, c_sh, c_st, c_sd, o_sb, o_sh, o_st, o_sd,
    x_sb, x_sh, x_st, x_sd, m_sb, m_st,
    heads, length_a, length_b, stretch, stretches, theta, cos_frame, sin_frame, eps,
    I: tl.constexpr, O: tl.constexpr, BI: tl.constexpr, BO: tl.constexpr, CHUNK: tl.constexpr, FRAME: tl.constexpr,
    GROUP_A: tl.constexpr, GROUP_B: tl.constexpr, MAP_A: tl.constexpr, MAP_B: tl.constexpr, MAP_C: tl.constexpr,
    MAP_X: tl.constexpr, SCALED: tl.constexpr, EXTRA: tl.constexpr, NORMED: tl.constexpr, Z: tl.constexpr,
    DIVIDED: tl.constexpr, ADDED: tl.constexpr,
    MASKED: tl.constexpr, PACKED: tl.constexpr, CAUSAL: tl.constexpr, REVERSE: tl.constexpr, SOURCES: tl.constexpr,
    TARGETS: tl.constexpr, STATE_IN: tl.constexpr, STATE_OUT: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid (O/BO, sequences · heads of a · stretches). Walks SOURCES and TARGETS; CAUSAL if both at once.

    SCALED: which operand is the gradient of the output ("a", "b", "c" or ""): its rows are multiplied by scale. EXTRA
    adds α β: column on that side, 1 on the other. MASKED: which side ("a", "b" or "") holds keys.
    """
    i_o = tl.program_id(0)
    i_all = tl.program_id(1)
    i_stretch = i_all % stretches
    i_head = (i_all // stretches) % heads
    i_seq = i_all // (stretches * heads)
    i_ha = i_head
    i_hb = (i_head // GROUP_A) * GROUP_B

    start_a, start_b, len_a, len_b, i_b = 0, 0, length_a, length_b, i_seq
    if PACKED:
        start_a = tl.load(p_cu_a + i_seq).to(tl.int32)
        start_b = tl.load(p_cu_b + i_seq).to(tl.int32)
        len_a = tl.load(p_cu_a + i_seq + 1).to(tl.int32) - start_a
        len_b = tl.load(p_cu_b + i_seq + 1).to(tl.int32) - start_b
        i_b = 0
    lead = 0  # position of the first target
    if CAUSAL and not REVERSE:
        lead = len_b - len_a
    total = len_b
    if TARGETS:
        total = len_a if not CAUSAL else tl.maximum(len_b, len_a)
    from_, to = i_stretch * stretch, tl.minimum((i_stretch + 1) * stretch, total)

    o_i = tl.arange(0, BI)
    o_o = i_o * BO + tl.arange(0, BO)
    o_c = tl.arange(0, CHUNK)
    p_a += i_b.to(tl.int64) * a_sb + i_ha * a_sh
    p_out += i_b.to(tl.int64) * o_sb + i_ha * o_sh
    p_x += i_b.to(tl.int64) * x_sb + i_ha * x_sh
    p_b += i_b.to(tl.int64) * b_sb + i_hb * b_sh
    p_c += i_b.to(tl.int64) * c_sb + i_hb * c_sh
    p_mask += i_b.to(tl.int64) * m_sb
    rows_a = (i_b.to(tl.int64) * heads + i_ha) * length_a  # of scale, column and z, [B, H, T] contiguous
    heads_b = (heads // GROUP_A) * GROUP_B

    # --- the state, from (Re, Im) seen from the position before this stretch -------------------------------------
    b_hc = tl.zeros([BI, BO], tl.float32)
    b_hs = tl.zeros([BI, BO], tl.float32)
    b_zc = tl.zeros([BI], tl.float32)
    b_zs = tl.zeros([BI], tl.float32)
    b_xc = tl.zeros([BO], tl.float32)  # the row of H that belongs to β
    b_xs = tl.zeros([BO], tl.float32)
    INNER: tl.constexpr = I + EXTRA
    i_state = ((i_seq * (heads // GROUP_A) + i_head // GROUP_A) * stretches + i_stretch).to(tl.int64)
    if not SOURCES:  # all stretches read one state
        i_state = (i_seq * (heads // GROUP_A) + i_head // GROUP_A).to(tl.int64)
    o_h = o_i[:, None] * O + o_o[None, :]
    m_h = (o_i < I)[:, None] & (o_o < O)[None, :]
    if STATE_IN:
        c1, s1 = tl.load(p_cos + 1), tl.load(p_sin + 1)
        if not SOURCES:  # seen from the last source, which stands this far from the first target of the stretch
            turn = theta * (from_ - len_b + 1).to(tl.float32)
            c1, s1 = tl.cos(turn), tl.sin(turn)
        p_re = p_state_in + i_state * 2 * INNER * O
        b_re = tl.load(p_re + o_h, mask=m_h, other=0.0)
        b_im = tl.load(p_re + INNER * O + o_h, mask=m_h, other=0.0)
        b_hc, b_hs = c1 * b_re - s1 * b_im, -s1 * b_re - c1 * b_im
        if EXTRA:
            b_re = tl.load(p_re + I * O + o_o, mask=o_o < O, other=0.0)
            b_im = tl.load(p_re + INNER * O + I * O + o_o, mask=o_o < O, other=0.0)
            b_xc, b_xs = c1 * b_re - s1 * b_im, -s1 * b_re - c1 * b_im
        if NORMED:
            b_re = tl.load(p_norm_in + i_state * 2 * I + o_i, mask=o_i < I, other=0.0)
            b_im = tl.load(p_norm_in + i_state * 2 * I + I + o_i, mask=o_i < I, other=0.0)
            b_zc, b_zs = c1 * b_re - s1 * b_im, -s1 * b_re - c1 * b_im

    # --- the walk ------------------------------------------------------------------------------------------------
    for frame in range(from_, to, FRAME):
        if frame > from_:
            b_hc, b_hs = cos_frame * b_hc + sin_frame * b_hs, cos_frame * b_hs - sin_frame * b_hc
            if EXTRA:
                b_xc, b_xs = cos_frame * b_xc + sin_frame * b_xs, cos_frame * b_xs - sin_frame * b_xc
            if NORMED:
                b_zc, b_zs = cos_frame * b_zc + sin_frame * b_zs, cos_frame * b_zs - sin_frame * b_zc
        for chunk in range(frame, tl.minimum(frame + FRAME, to), CHUNK):
            o_p = chunk + o_c
            b_cos = tl.load(p_cos + (o_p - frame))
            b_sin = tl.load(p_sin + (o_p - frame))
            if TARGETS:
                o_ta = o_p - lead
                m_a = (o_ta >= 0) & (o_ta < len_a) & (o_p < to)
                o_ta = start_a + (len_a - 1 - o_ta if REVERSE else o_ta)
                m_row = m_a
                if MASKED == "a":
                    m_row = m_a & (tl.load(p_mask + o_ta.to(tl.int64) * m_st, mask=m_a, other=0) != 0)
                b_a = feature_map(load_rows(p_a, a_st, a_sd, o_ta, o_i, m_row, I), MAP_A)
                b_a = tl.where(m_row[:, None] & (o_i < I)[None, :], b_a, 0.0)
                if SCALED == "a":
                    b_a = b_a * tl.load(p_scale + rows_a + o_ta, mask=m_a, other=0.0)[:, None]
                b_alpha = tl.where(m_row, 1.0, 0.0)
                if EXTRA and SCALED == "a":
                    b_alpha = tl.load(p_column + rows_a + o_ta, mask=m_a, other=0.0)
                b_ad = rounded(b_a, DOT)
                b_out = tl.dot(b_ad, rounded(b_hc, DOT), input_precision=PRECISION) * b_cos[:, None]
                b_out += tl.dot(b_ad, rounded(b_hs, DOT), input_precision=PRECISION) * b_sin[:, None]
                b_z = tl.zeros([CHUNK], tl.float32)
                if EXTRA:
                    b_out += (b_alpha * b_cos)[:, None] * b_xc[None, :] + (b_alpha * b_sin)[:, None] * b_xs[None, :]
                if NORMED:
                    b_z = tl.sum(b_a * b_zc[None, :], 1) * b_cos + tl.sum(b_a * b_zs[None, :], 1) * b_sin
            if SOURCES:
                m_b = (o_p < len_b) & (o_p < to)
                o_tb = start_b + (len_b - 1 - o_p if REVERSE else o_p)
                m_row = m_b
                if MASKED == "b":
                    m_row = m_b & (tl.load(p_mask + o_tb.to(tl.int64) * m_st, mask=m_b, other=0) != 0)
                for g in tl.static_range(GROUP_B):
                    b_b = feature_map(load_rows(p_b + g * b_sh, b_st, b_sd, o_tb, o_i, m_row, I), MAP_B)
                    b_b = tl.where(m_row[:, None] & (o_i < I)[None, :], b_b, 0.0)
                    b_c = feature_map(load_rows(p_c + g * c_sh, c_st, c_sd, o_tb, o_o, m_row, O), MAP_C)
                    b_c = tl.where(m_row[:, None] & (o_o < O)[None, :], b_c, 0.0)
                    rows_b = (i_b.to(tl.int64) * heads_b + i_hb + g) * length_b
                    if SCALED == "b":
                        b_b = b_b * tl.load(p_scale + rows_b + o_tb, mask=m_b, other=0.0)[:, None]
                    if SCALED == "c":
                        b_c = b_c * tl.load(p_scale + rows_b + o_tb, mask=m_b, other=0.0)[:, None]
                    b_beta = tl.where(m_row, 1.0, 0.0)
                    if EXTRA and SCALED == "b":
                        b_beta = tl.load(p_column + rows_b + o_tb, mask=m_b, other=0.0)
                    b_cd = rounded(b_c, DOT)
                    if TARGETS:
                        b_s = tl.dot(b_ad, tl.trans(rounded(b_b, DOT)), input_precision=PRECISION)
                        if EXTRA:
                            b_s += b_alpha[:, None] * b_beta[None, :]
                        # cos θ(i − j) from the two clocks: no third table
                        b_s *= b_cos[:, None] * b_cos[None, :] + b_sin[:, None] * b_sin[None, :]
                        b_s = tl.where(o_c[:, None] >= o_c[None, :], b_s, 0.0)
                        b_out += tl.dot(rounded(b_s, DOT), b_cd, input_precision=PRECISION)
                        if NORMED:
                            b_z += tl.sum(b_s, 1)
                    b_bc = b_b * b_cos[:, None]
                    b_bs = b_b * b_sin[:, None]
                    b_hc += tl.dot(tl.trans(rounded(b_bc, DOT)), b_cd, input_precision=PRECISION)
                    b_hs += tl.dot(tl.trans(rounded(b_bs, DOT)), b_cd, input_precision=PRECISION)
                    if EXTRA:
                        b_xc += tl.sum(b_c * (b_beta * b_cos)[:, None], 0)
                        b_xs += tl.sum(b_c * (b_beta * b_sin)[:, None], 0)
                    if NORMED:
                        b_zc += tl.sum(b_bc, 0)
                        b_zs += tl.sum(b_bs, 0)
            if TARGETS:
                if Z:
                    if i_o == 0:
                        if ADDED:
                            b_z += tl.load(p_z + rows_a + o_ta, mask=m_a, other=0.0)
                        tl.store(p_z + rows_a + o_ta, b_z, mask=m_a)
                if DIVIDED:
                    b_out = b_out / tl.where(tl.abs(b_z) < eps, eps, b_z)[:, None]
                if MAP_X != "identity":
                    b_x = load_rows(p_x, x_st, x_sd, o_ta, o_o, m_a, O)
                    b_out = b_out * feature_map_gradient(b_x, MAP_X)
                if MASKED == "a":  # the gradient of a masked key is 0, whatever it holds
                    keep = tl.load(p_mask + o_ta.to(tl.int64) * m_st, mask=m_a, other=0) != 0
                    b_out = tl.where(keep[:, None], b_out, 0.0)
                p_o = p_out + o_ta[:, None].to(tl.int64) * o_st + o_o[None, :] * o_sd
                m_o = m_a[:, None] & (o_o < O)[None, :]
                if ADDED:
                    b_out += tl.load(p_o, mask=m_o, other=0.0)
                tl.store(p_o, b_out.to(p_out.dtype.element_ty), mask=m_o)

    # --- (Re, Im) seen from the last position --------------------------------------------------------------------
    if STATE_OUT:
        if i_head % GROUP_A == 0:
            last = tl.maximum(to - 1 - from_, 0) % FRAME
            cl, sl = tl.load(p_cos + last), tl.load(p_sin + last)
            p_re = p_state_out + i_state * 2 * INNER * O
            tl.store(p_re + o_h, cl * b_hc + sl * b_hs, mask=m_h)
            tl.store(p_re + INNER * O + o_h, sl * b_hc - cl * b_hs, mask=m_h)
            if EXTRA:
                tl.store(p_re + I * O + o_o, cl * b_xc + sl * b_xs, mask=o_o < O)
                tl.store(p_re + INNER * O + I * O + o_o, sl * b_xc - cl * b_xs, mask=o_o < O)
            if NORMED:
                if i_o == 0:
                    p_n = p_norm_out + i_state * 2 * I + o_i
                    tl.store(p_n, cl * b_zc + sl * b_zs, mask=o_i < I)
                    tl.store(p_n + I, sl * b_zc - cl * b_zs, mask=o_i < I)


@triton.jit
def row_gradients_kernel(
    p_do, p_o, p_z, p_scale, p_column, d_sb, d_sh, d_st, d_sd, o_sb, o_sh, o_st, o_sd, heads, length, eps,
    V: tl.constexpr, BV: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Grid (T/BT, B·H). scale = 1/z and column = −(do·o)/z, 0 where z was clamped and no longer moves."""
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_h = (i_bh // heads).to(tl.int64), i_bh % heads
    o_t, o_v = i_t * BT + tl.arange(0, BT), tl.arange(0, BV)
    m_t = o_t < length
    b_do = load_rows(p_do + i_b * d_sb + i_h * d_sh, d_st, d_sd, o_t, o_v, m_t, V)
    b_o = load_rows(p_o + i_b * o_sb + i_h * o_sh, o_st, o_sd, o_t, o_v, m_t, V)
    at = i_bh.to(tl.int64) * length + o_t
    b_z = tl.load(p_z + at, mask=m_t, other=1.0)
    clamped = tl.abs(b_z) < eps
    b_scale = 1 / tl.where(clamped, eps, b_z)
    tl.store(p_scale + at, b_scale, mask=m_t)
    tl.store(p_column + at, tl.where(clamped, 0.0, -tl.sum(b_do * b_o, 1) * b_scale), mask=m_t)


@triton.jit
def step_kernel(
    p_q, p_k, p_v, p_o, p_state, p_norm, p_mask, q_sb, q_sh, q_sd, k_sb, k_sh, k_sd, v_sb, v_sh, v_sd, o_sb, o_sh, o_sd,
    m_sb, heads, lost, turned, eps,
    K: tl.constexpr, V: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr, GROUP: tl.constexpr, MAP: tl.constexpr,
    MASKED: tl.constexpr, NORMALIZE: tl.constexpr,
):  # fmt: skip
    """Grid (B·Hkv). One token: the state turns by θ (lost = 1 − cos θ, turned = sin θ), takes k ⊗ [v, 1], is read."""
    i_bh = tl.program_id(0)
    i_b, i_h = (i_bh // heads).to(tl.int64), i_bh % heads
    o_k = tl.arange(0, BK)
    m_k = o_k < K
    b_k = feature_map(tl.load(p_k + i_b * k_sb + i_h * k_sh + o_k * k_sd, mask=m_k, other=0.0).to(tl.float32), MAP)
    keep = m_k
    if MASKED:
        seen = tl.load(p_mask + i_b * m_sb) != 0
        keep = m_k & seen
    b_k = tl.where(keep, b_k, 0.0)
    p_zre = p_norm + i_bh.to(tl.int64) * 2 * K + o_k
    b_zre = tl.load(p_zre, mask=m_k, other=0.0)
    b_zim = tl.load(p_zre + K, mask=m_k, other=0.0)
    b_z = b_zre - (lost * b_zre + turned * b_zim) + b_k
    tl.store(p_zre, b_z, mask=m_k)
    tl.store(p_zre + K, b_zim + (turned * b_zre - lost * b_zim), mask=m_k)
    for v0 in range(0, V, BV):
        o_v = v0 + tl.arange(0, BV)
        m_v = o_v < V
        b_v = tl.load(p_v + i_b * v_sb + i_h * v_sh + o_v * v_sd, mask=m_v, other=0.0).to(tl.float32)
        if MASKED:
            b_v = tl.where(seen, b_v, 0.0)
        p_re = p_state + i_bh.to(tl.int64) * 2 * K * V + o_k[:, None] * V + o_v[None, :]
        m_h = m_k[:, None] & m_v[None, :]
        b_re = tl.load(p_re, mask=m_h, other=0.0)
        b_im = tl.load(p_re + K * V, mask=m_h, other=0.0)
        b_new = b_re - (lost * b_re + turned * b_im) + b_k[:, None] * b_v[None, :]
        tl.store(p_re, b_new, mask=m_h)
        tl.store(p_re + K * V, b_im + (turned * b_re - lost * b_im), mask=m_h)
        for g in tl.static_range(GROUP):
            i_q = i_h * GROUP + g
            b_q = tl.load(p_q + i_b * q_sb + i_q * q_sh + o_k * q_sd, mask=m_k, other=0.0).to(tl.float32)
            b_q = tl.where(m_k, feature_map(b_q, MAP), 0.0)
            b_o = tl.sum(b_q[:, None] * b_new, 0)
            if NORMALIZE:
                z = tl.sum(b_q * b_z, 0)
                b_o = b_o / tl.where(tl.abs(z) < eps, eps, z)
            tl.store(p_o + i_b * o_sb + i_q * o_sh + o_v * o_sd, b_o.to(p_o.dtype.element_ty), mask=m_v)


@triton.jit
def scan_kernel(
    p_x, p_init, p_total, p_first, size, heads, stretches,
    BLOCK: tl.constexpr, PACKED: tl.constexpr, REVERSE: tl.constexpr, INIT: tl.constexpr,
):  # fmt: skip
    """Grid (sequences · heads, size/BLOCK). In place: what each stretch adds becomes what came before it (REVERSE:
    after it); `total` is the sum of all, with `init`. x [slots, heads, size], init and total [sequences, heads, size]
    """
    i_seq, i_head = tl.program_id(0) // heads, tl.program_id(0) % heads
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = o < size
    first, last = i_seq * stretches, (i_seq + 1) * stretches
    if PACKED:
        first, last = tl.load(p_first + i_seq), tl.load(p_first + i_seq + 1)
    whole = tl.program_id(0).to(tl.int64) * size + o
    b_sum = tl.zeros([BLOCK], tl.float32)
    if INIT:
        b_sum = tl.load(p_init + whole, mask=m, other=0.0)
    for i in range(first, last):
        slot = last - 1 - (i - first) if REVERSE else i
        p = p_x + (slot.to(tl.int64) * heads + i_head) * size + o
        b_x = tl.load(p, mask=m, other=0.0)
        tl.store(p, b_sum, mask=m)
        b_sum += b_x
    tl.store(p_total + whole, b_sum, mask=m)
