"""How exact the linear form is: worst errors against the quadratic definition in float64."""

import torch

from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.reference import attention_reference
from cosformer.ops.state import AttentionState

DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
MODES = ("causal", "bidirectional", "padded", "cross", "packed")


def worst_errors(*, length: int = 1_003, heads: int = 4, width: int = 64, backend: str = "auto") -> dict[str, dict]:
    """{mode: {dtype: {"output", "gradient"}}}: the largest difference, for values drawn from N(0, 1).

    Gradients of q, k and v together, relative to the largest of each. The reference takes the inputs as rounded to the
    dtype, so what remains is the operator's own error and the rounding of its results.
    """
    torch.manual_seed(0)
    x = [torch.randn(1, heads, length, width, dtype=torch.float64) for _ in range(4)]
    return {mode: {name: _errors(mode, [t.to(d) for t in x], backend) for name, d in DTYPES.items()} for mode in MODES}


def _errors(mode: str, x: list[torch.Tensor], backend: str) -> dict[str, float]:
    q, k, v, do = x
    causal, length, cut = mode in ("causal", "padded", "packed"), q.shape[2], q.shape[2] // 3
    if mode == "cross":
        q, do = q[:, :, :cut], do[:, :, :cut]
    mask = torch.arange(length)[None] % 5 > 0 if mode == "padded" else None
    offsets = torch.tensor([0, cut, length]) if mode == "packed" else None
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    options = {"causal": causal, "horizon": length}
    o = cosformer_attention(q, k, v, key_mask=mask, cu_seqlens=offsets, backend=backend, **options)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    keep = None if mask is None else mask[:, None, None]
    if offsets is None:
        exact = attention_reference(wide[0], wide[1], wide[2], attn_mask=keep, **options)
    else:
        parts = [[t[:, :, i:j] for t in wide] for i, j in ((0, cut), (cut, length))]
        exact = torch.cat([attention_reference(*part, **options) for part in parts], 2)
    got, want = torch.autograd.grad(o, (q, k, v), do), torch.autograd.grad(exact, wide, do.double())
    relative = [((a.double() - b).abs().max() / b.abs().max()).item() for a, b in zip(got, want, strict=True)]
    return {"output": (o.double() - exact).abs().max().item(), "gradient": max(relative)}


def drift(*, steps: int, width: int = 16, backend: str = "auto") -> dict[str, float]:
    """The last output after `steps` single fp32 steps, against the same sequence in one pass in float64."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, steps, width) for _ in range(3))
    state, o = AttentionState.zeros(1, 1, width, width, horizon=steps), q[:, :, :1]
    with torch.no_grad():
        for t in range(steps):
            now = slice(t, t + 1)
            o = attention_step(q[:, :, now], k[:, :, now], v[:, :, now], state, backend=backend)
        exact = cosformer_attention(q[:, :, -1:].double(), k.double(), v.double(), causal=True, horizon=steps)
    return {"steps": steps, "output": (o.double() - exact).abs().max().item()}
