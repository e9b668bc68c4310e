"""The definition of SPEC once more, written apart from the package: explicit positions, float64, nothing shared.

Every test case is a `Case`; `expected` gives its outputs by the definition, `eager` by the package's quadratic form in
the case's own dtype (the yardstick for rounding), `actual` by the operator.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cosformer import AttentionState, attention_reference, cosformer_attention

PHI = {
    "relu": lambda x: x.clamp(min=0),
    "identity": lambda x: x,
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "elu1": lambda x: torch.where(x > 0, x + 1, x.clamp(max=0).exp()),
    "silu": lambda x: x * torch.sigmoid(x),
}


def define(
    q: Tensor, k: Tensor, v: Tensor, *, at_q: Tensor, at_k: Tensor, keep: Tensor, horizon: int,
    feature_map: str = "relu", normalize: bool = True, eps: float = 1e-6,
) -> Tensor:  # fmt: skip
    """One head at a time: q [T,K], k [S,K], v [S,V], positions at_q [T] and at_k [S], keep [T,S] bool."""
    phi = PHI[feature_map]
    w = (phi(q) @ phi(k).T) * torch.cos(math.pi / (2 * horizon) * (at_q[:, None] - at_k[None, :]).to(q.dtype))
    w = w.masked_fill(~keep, 0.0)
    if not normalize:
        return w @ v
    z = w.sum(1, keepdim=True)
    return (w @ v) / torch.where(z.abs() < eps, torch.full_like(z, eps), z)


@dataclass(frozen=True)
class Case:
    B: int = 2
    H: int = 2
    Hkv: int = 2
    T: int = 65
    S: int = 65
    K: int = 24
    V: int = 40
    past: int = 0  # tokens in the incoming state
    causal: bool = True
    masked: bool = False
    feature_map: str = "relu"
    normalize: bool = True
    dtype: torch.dtype = torch.float64
    slack: int = 7  # horizon beyond what is needed
    seed: int = 0

    @property
    def horizon(self) -> int:
        return max(self.T, self.S) + self.past + self.slack

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.").replace("float", "f")
        return (
            f"{kind}-{'causal' if self.causal else 'full'}-B{self.B}-H{self.H}.{self.Hkv}"
            + f"-T{self.T}-S{self.S}-K{self.K}-V{self.V}"
            + (f"-past{self.past}" if self.past else "") + ("-masked" if self.masked else "")
            + ("" if self.feature_map == "relu" else f"-{self.feature_map}") + ("" if self.normalize else "-sum")
        )  # fmt: skip

    def inputs(self) -> dict[str, Tensor]:
        g = torch.Generator().manual_seed(self.seed)
        # signed maps may have denominators near 0, where no form is accurate: keep them away from it
        shift = 1.0 if self.normalize and self.feature_map in ("identity", "leaky_relu", "silu") else 0.0

        def draw(heads: int, length: int, width: int, shift: float = 0.0) -> Tensor:
            return (torch.randn(self.B, heads, length, width, generator=g, dtype=torch.float64) + shift).to(self.dtype)

        return {
            "q": draw(self.H, self.T, self.K, shift), "k": draw(self.Hkv, self.past + self.S, self.K, shift),
            "v": draw(self.Hkv, self.past + self.S, self.V), "do": draw(self.H, self.T, self.V),
        }  # fmt: skip

    def key_mask(self) -> Tensor | None:
        """Over past and present keys; the first key always counts, so that no causal row is empty."""
        if not self.masked:
            return None
        g = torch.Generator().manual_seed(self.seed + 1)
        mask = torch.rand(self.B, self.past + self.S, generator=g) > 0.3
        mask[:, 0] = True
        return mask

    def keep(self) -> Tensor:
        """[B, T, past + S]"""
        at_q, at_k = self.positions()
        keep = (at_k[None] <= at_q[:, None]) if self.causal else torch.ones(self.T, len(at_k), dtype=torch.bool)
        mask = self.key_mask()
        return keep.expand(self.B, -1, -1) if mask is None else keep & mask[:, None]

    def positions(self) -> tuple[Tensor, Tensor]:
        lead = self.S - self.T if self.causal else 0
        return torch.arange(self.T) + lead, torch.arange(-self.past, self.S)


def expected(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = q.double(), k.double(), v.double()
    (at_q, at_k), keep, group = case.positions(), case.keep(), case.H // case.Hkv
    rows = [
        [
            define(
                q[b, h], k[b, h // group], v[b, h // group], at_q=at_q, at_k=at_k, keep=keep[b], horizon=case.horizon,
                feature_map=case.feature_map, normalize=case.normalize,
            )
            for h in range(case.H)
        ]
        for b in range(case.B)
    ]  # fmt: skip
    return torch.stack([torch.stack(row) for row in rows])


def eager(case: Case, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The package's quadratic form in the case's dtype; causal, so that a past is only a longer sequence."""
    assert case.causal or not case.past
    return attention_reference(
        q, k, v, causal=case.causal, horizon=case.horizon, attn_mask=case.keep()[:, None],
        feature_map=case.feature_map, normalize=case.normalize,
    )  # fmt: skip


def actual(case: Case, q: Tensor, k: Tensor, v: Tensor, backend: str) -> Tensor:
    mask, state, p = case.key_mask(), None, case.past
    options = {"feature_map": case.feature_map, "normalize": case.normalize, "backend": backend}
    if p:
        _, state = cosformer_attention(
            q[:, :, :1], k[:, :, :p], v[:, :, :p], horizon=case.horizon, return_state=True,
            key_mask=None if mask is None else mask[:, :p], **options,
        )  # fmt: skip
        assert isinstance(state, AttentionState)
        assert state.length == p
    return cosformer_attention(
        q, k[:, :, p:], v[:, :, p:], causal=case.causal, horizon=case.horizon, state=state,
        key_mask=None if mask is None else mask[:, p:], **options,
    )  # fmt: skip


def with_gradients(run, case: Case) -> dict[str, Tensor]:
    """{o, dq, dk, dv} of run(q, k, v)."""
    x = case.inputs()
    q, k, v = (x[name].requires_grad_() for name in ("q", "k", "v"))
    o = run(q, k, v)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), x["do"].to(o.dtype))
    return {"o": o.detach(), "dq": dq, "dk": dk, "dv": dv}


def sizes(case: Case) -> dict[str, float]:
    """The size of what is added up in o, dq, dk, dv: each sum with absolute values in it.

    Gradients cancel (a row of one key has exactly none), so rounding must be judged by the terms, not by the result.
    """
    x = {name: t.double() for name, t in case.inputs().items()}
    (at_q, at_k), keep, group = case.positions(), case.keep(), case.H // case.Hkv
    turn = torch.cos(math.pi / (2 * case.horizon) * (at_q[:, None] - at_k[None, :]).double())
    phi, largest = PHI[case.feature_map], dict.fromkeys(("o", "dq", "dk", "dv"), 0.0)
    for b in range(case.B):
        for h in range(case.H):
            q, k, v, do = x["q"][b, h], x["k"][b, h // group], x["v"][b, h // group], x["do"][b, h].abs()
            w = (phi(q) @ phi(k).T * turn).masked_fill(~keep[b], 0)
            z = w.sum(1, keepdim=True) if case.normalize else torch.ones(case.T, 1, dtype=torch.float64)
            z = torch.where(z.abs() < 1e-6, 1e-6, z).abs()
            o = w.abs() @ v.abs() / z
            pull = do @ v.abs().T + ((do * o).sum(1, keepdim=True) if case.normalize else 0)
            pull = pull * turn.masked_fill(~keep[b], 0).abs() / z
            found = {
                "o": o,
                "dq": pull @ phi(k).abs(),
                "dk": pull.T @ phi(q).abs() * group,
                "dv": w.abs().T @ (do / z) * group,
            }
            largest = {name: max(largest[name], found[name].max().item()) for name in largest}
    return largest
