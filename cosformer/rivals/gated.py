"""Feature attention whose past fades by a gate of each token. The gate differs by token, so no clock of ours fits:
chunks in plain torch operations, all at once; only the states between chunks are carried one after another."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cosformer.ops.features import clamp_norm, no_autocast, sum_dtype

CHUNK = 64


def gated_attention(
    phi_q: Tensor, phi_k: Tensor, v: Tensor, opening: Tensor, *, key_mask: Tensor | None = None,
    sums: Tensor | None = None, norm: Tensor | None = None, eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o[t] = φ(q)·S[t] / φ(q)·z[t],  S[t] = g S[t−1] + (1 − g) φ(k)⊗v,  z the same for 1,  g = sigmoid(opening[t]).

    phi_q [B,H,T,F]; phi_k [B,Hkv,T,F]; v [B,Hkv,T,V]; opening [B,Hkv,T]; key_mask [B,T]: a masked token leaves the
    state as it is. sums [B,Hkv,F,V] and norm [B,Hkv,F] are the state before. Gives o [B,H,T,V] and the state after.
    """
    (b, h, t, f), hkv, width = phi_q.shape, phi_k.shape[1], v.shape[3]
    dtype = sum_dtype(phi_q.dtype)
    with no_autocast(phi_q):
        fade, share = F.logsigmoid(opening.to(dtype)), torch.sigmoid(-opening.to(dtype))  # log g, 1 − g
        keys, values = phi_k.to(dtype), F.pad(v.to(dtype), (0, 1), value=1.0)  # [B, Hkv, T, V + 1]
        if key_mask is not None:
            seen = key_mask[:, None]
            fade, share = fade.masked_fill(~seen, 0), share.masked_fill(~seen, 0)
            keys, values = (x.masked_fill(~seen[..., None], 0) for x in (keys, values))
        fill = -t % CHUNK
        fade, share = (F.pad(x, (0, fill)).unflatten(2, (-1, CHUNK)) for x in (fade, share))  # [B, Hkv, N, C]
        keys, values = (F.pad(x, (0, 0, 0, fill)).unflatten(2, (-1, CHUNK)) for x in (keys, values))
        queries = F.pad(phi_q.to(dtype), (0, 0, 0, fill)).view(b, hkv, h // hkv, -1, CHUNK, f)  # [B, Hkv, G, N, C, F]
        gone = fade.cumsum(-1)  # log of what is left of the chunk's start after each token
        apart = gone[..., :, None] - gone[..., None, :]  # [B, Hkv, N, C, C]; positive only where s > t
        ahead = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=v.device).triu(1)
        weight = torch.exp(apart.masked_fill(ahead, float("-inf"))) * share[..., None, :]
        inside = (queries @ keys[:, :, None].mT * weight[:, :, None]) @ values[:, :, None]
        last = torch.exp(gone[..., -1:] - gone) * share  # [B, Hkv, N, C]
        added = (keys * last[..., None]).mT @ values  # [B, Hkv, N, F, V + 1]
        left = torch.exp(gone[..., -1])[..., None, None]
        state = values.new_zeros(b, hkv, f, width + 1)
        if sums is not None and norm is not None:
            state = torch.cat([sums, norm[..., None]], -1)
        before = []
        for n in range(added.shape[2]):
            before.append(state)
            state = left[:, :, n] * state + added[:, :, n]
        past = queries @ torch.stack(before, 2)[:, :, None] * torch.exp(gone)[:, :, None, ..., None]
        both = (inside + past).flatten(3, 4)[:, :, :, :t].flatten(1, 2)  # [B, H, T, V + 1]
        o = both[..., :-1] / clamp_norm(both[..., -1:], eps)
        return o.to(v.dtype), state[..., :-1], state[..., -1]
