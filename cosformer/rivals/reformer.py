"""attention="reformer": softmax among tokens that a random hash calls alike (Kitaev et al. 2020)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache

from cosformer.models.configuration import CosformerConfig
from cosformer.models.kinds import Cost, make_options, register_attention
from cosformer.models.layout import Layout
from cosformer.models.softmax_kind import pair_flops
from cosformer.ops.features import no_autocast, sum_dtype
from cosformer.rivals.drawn_features import DrawnFeatures, check_seed, gaussian
from cosformer.rivals.function_checks import check_sequences, check_weight, check_width, sequence_bounds
from cosformer.rivals.whole_sequence import WholeSequenceKind, for_each_head, over_sequences

SELF = -1e5
"""A token's score for itself: taken only where nothing else is seen."""


def reformer_attention(
    x: Tensor, v: Tensor, rotations: Tensor, *, causal: bool = False, key_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None, chunk: int = 64,
) -> Tensor:  # fmt: skip
    """o[t] = Σ_s p[t,s] v[s] over the tokens s that fall into t's bucket within reach, in any of R rounds.

    x [B,H,T,K] is query and, at unit length, key; v [B,H,T,V]; rotations [H,R,K,N/2] hash into N buckets by
    argmax[xW; −xW]. Each round sorts by bucket, then place, and cuts into chunks; in reach are a token's own chunk and
    the one before. A pair that meets in several rounds counts once. Causal: nothing flows from later tokens, but who is
    in reach of whom depends on them too, as published. key_mask and cu_seqlens as in `cosformer_attention`; what a
    masked token gets means nothing.
    """
    x, _, v = check_sequences(x, x, v, key_mask, cu_seqlens, places=None)  # x is q and k in one
    check_weight("rotations", rotations, "[H, R, K, N/2]", x)
    check_width("rotations", rotations.shape[2], x=x)
    if rotations.shape[0] != x.shape[1]:
        raise ValueError(
            f"rotations has {rotations.shape[0]} heads but x has {x.shape[1]}: each head has hashes of its own"
        )
    make_options(
        ReformerOptions, {"rounds": rotations.shape[1], "buckets": 2 * rotations.shape[3], "chunk": chunk}
    )  # fmt: skip
    over = functools.partial(reformer_over, rotations=rotations, causal=causal, chunk=chunk)
    return over_sequences(over, (x, v), key_mask, sequence_bounds(cu_seqlens, x, "reformer_attention"))


def reformer_over(x: Tensor, v: Tensor, real: Tensor | None, *, rotations: Tensor, causal: bool, chunk: int) -> Tensor:
    """The same for rows whose real tokens come first: real [B,T]."""
    b, _, t, _ = x.shape
    given = v.dtype
    rounds, fill, dtype = rotations.shape[1], -t % chunk, sum_dtype(x.dtype)
    if real is None:
        real = torch.ones(1, t, dtype=torch.bool, device=x.device)
    real = F.pad(real.expand(b, -1), (0, fill))[:, None, None]  # [B, 1, 1, T']
    with no_autocast(x):
        x, v = (F.pad(y.to(dtype), (0, 0, 0, fill)) for y in (x, v))
        k, t_all = F.normalize(x, dim=-1), t + fill
        with torch.no_grad():
            sides = x[:, :, None] @ rotations.to(dtype)  # [B, H, R, T', N/2]
            bucket = torch.cat([sides, -sides], -1).argmax(-1)
            bucket = bucket.masked_fill(~real, 2 * rotations.shape[3])  # what is not real comes last
            order = (bucket * t_all + torch.arange(t_all, device=x.device)).argsort(-1)  # token in each slot
            slot = order.argsort(-1)  # slot of each token
        outs = [
            _round(x, k, v, bucket, order, slot // chunk, r, causal=causal, chunk=chunk, real=real)
            for r in range(rounds)
        ]
        back = [slot[:, :, r] for r in range(rounds)]
        lse = torch.stack([z.gather(2, s) for (_, z), s in zip(outs, back, strict=True)])  # [R, B, H, T']
        each = torch.stack([
            o.gather(2, s[..., None].expand(-1, -1, -1, v.shape[3])) for (o, _), s in zip(outs, back, strict=True)
        ])  # fmt: skip
        return (lse.softmax(0)[..., None] * each).sum(0)[:, :, :t].to(given)


def _round(
    x: Tensor, k: Tensor, v: Tensor, bucket: Tensor, order: Tensor, place: Tensor, r: int, *, causal: bool,
    chunk: int, real: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o [B,H,T',V] and the logarithm of its weights' sum [B,H,T'], in the order of round r."""
    at = order[:, :, r]  # [B, H, T']

    def chunks(y: Tensor) -> Tensor:
        """[B,H,T',*] in the order of the round, a chunk at a time: [B,H,n,C,*]."""
        index = at if y.dim() == 3 else at[..., None].expand(*at.shape, y.shape[3])
        return y.gather(2, index).unflatten(2, (-1, chunk))

    def with_before(y: Tensor, nothing: float) -> Tensor:
        """Each chunk after the one before it: [B,H,n,2C,*]."""
        first = torch.full_like(y[:, :, :1], nothing)
        return torch.cat([torch.cat([first, y[:, :, :-1]], 2), y], 3)

    token = at.unflatten(2, (-1, chunk))
    near = with_before(token, -1)  # −1: there is no chunk before the first
    scores = chunks(x) @ with_before(chunks(k), 0).mT * x.shape[-1] ** -0.5  # [B, H, n, C, 2C]
    with torch.no_grad():
        apart = token[..., :, None] - near[..., None, :]
        met = torch.zeros_like(scores)  # rounds in which the two meet
        here = torch.zeros_like(scores, dtype=torch.bool)
        for i in range(bucket.shape[2]):
            bucket_q, place_q = chunks(bucket[:, :, i]), chunks(place[:, :, i])
            same = bucket_q[..., :, None] == with_before(bucket_q, -1)[..., None, :]
            back = place_q[..., :, None] - with_before(place_q, -9)[..., None, :]
            together = same & ((back == 0) | (back == 1))
            met += together
            here = together if i == r else here
        held = real[:, :, 0].expand(-1, x.shape[1], -1)
        here = here & with_before(chunks(held), 0)[..., None, :] & (near >= 0)[..., None, :]
        here = here & (apart >= 0) if causal else here
    scores = torch.where(apart == 0, SELF, scores) - met.clamp(min=1).log()
    scores = scores.masked_fill(~here, torch.finfo(scores.dtype).min)
    lse = scores.logsumexp(-1, keepdim=True)
    o = torch.exp(scores - lse) @ with_before(chunks(v), 0)
    return o.flatten(2, 3), lse[..., 0].flatten(2)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReformerOptions:
    rounds: int = 4
    """Hashes; more find more of what softmax would weigh."""
    buckets: int = 32
    """Even. Best near twice the length over `chunk`."""
    chunk: int = 64
    """Tokens, after sorting, that look at themselves and as many before."""
    redraw: int = 1
    """Training passes between draws of the hashes; 0: drawn once."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.rounds < 1 or self.chunk < 1:
            raise ValueError(f"rounds={self.rounds}, chunk={self.chunk}: use at least 1 of each")
        if self.buckets < 2 or self.buckets % 2:
            raise ValueError(f"buckets={self.buckets}: a hash and its opposite make two; use an even number")
        if self.redraw < 0:
            raise ValueError(f"redraw={self.redraw}: it counts training passes; use 0 to draw once")


class ReformerKind(WholeSequenceKind):
    """Query and key are one: (q + k)/√2, a single linear map of the token in which both projections take part."""

    layer_type = "full_attention"
    continues = False
    Options = ReformerOptions

    def __init__(self, config: CosformerConfig, layer: int, *, causal: bool) -> None:
        super().__init__(config, layer, causal=causal)
        options: ReformerOptions = self.options_of(config)
        assert config.head_dim is not None
        self.chunk = options.chunk
        shape = (config.num_attention_heads, options.rounds, config.head_dim, options.buckets // 2)
        self.drawn = DrawnFeatures(
            functools.partial(_hashes, shape=shape), shape, redraw=options.redraw, seed=options.seed, layer=layer
        )

    @classmethod
    def cost(cls, config: CosformerConfig, *, causal: bool) -> Cost:
        """Of each round: the hash, and two chunks of keys; those in another bucket are computed for nothing."""
        options: ReformerOptions = cls.options_of(config)
        assert config.head_dim is not None
        hashing = config.num_attention_heads * config.head_dim * options.buckets
        return Cost(flops=options.rounds * (hashing + 2 * options.chunk * pair_flops(config)))

    def over(self, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> Tensor:
        shared = (q + for_each_head(k, q.shape[1])) * 0.5**0.5
        v = for_each_head(v, q.shape[1])
        return reformer_over(shared, v, real, rotations=self.rotations, causal=self.causal, chunk=self.chunk)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, cache: Cache | None) -> Tensor:
        if cache is not None:
            held, _ = cache.update(k, v, self.layer)
            if held.shape[2] != k.shape[2]:
                raise ValueError(
                    "attention='reformer' cannot continue from a cache: chunks are cut after sorting the whole "
                    "sequence, so a new token changes who meets whom; pass use_cache=False"
                )
        self.rotations = self.drawn()  # once, so that packed sequences share them
        return self.attend_whole(q, k, v, layout)


def _hashes(generator: torch.Generator, shape: tuple[int, ...]) -> Tensor:
    return gaussian(generator, *shape)


register_attention("reformer", ReformerKind)
