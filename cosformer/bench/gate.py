"""Correctness before speed: outputs and gradients against float64, or an error instead of a timing."""

import torch
from torch import Tensor

from cosformer.ops.attention import attention_step, cosformer_attention
from cosformer.ops.features import sum_dtype
from cosformer.ops.reference import attention_reference, attention_weights
from cosformer.ops.state import AttentionState

MODES = {"cosformer, causal": True, "cosformer, bidirectional": False}


def gate_attention(
    *, device: str, dtype: torch.dtype, width: int, backend: str, lengths: tuple[int, ...] = (333,)
) -> dict[str, float]:
    """The worst error of each mode, absolute for outputs and relative to the largest for gradients.

    Allowed is what rounding explains: twice (gradients three times) the error of the quadratic form in the same dtype
    and three roundings at the size of what is added up.
    """
    errors: dict[str, float] = {}
    draw = torch.Generator(device).manual_seed(0)
    for length in lengths:
        x = [torch.randn(1, 2, length, width, device=device, dtype=dtype, generator=draw) for _ in range(4)]
        for name, causal in MODES.items():
            got = _with_gradients(lambda *i, c=causal: cosformer_attention(*i, causal=c, backend=backend), x)
            same = _with_gradients(lambda *i, c=causal: attention_reference(*i, causal=c), x)
            want = _with_gradients(lambda *i, c=causal: attention_reference(*i, causal=c), [t.double() for t in x])
            sizes = _sizes([t.double() for t in x], causal)
            for which, *tensors, size in zip(("", "dq of ", "dk of ", "dv of "), got, same, want, sizes, strict=True):
                label = f"{name}, gradients" if which else name
                error = _checked(f"{which}{name}, T={length}", *tensors, size=size, factor=3 if which else 2)
                relative = error / tensors[2].abs().max().item() if which else error
                errors[label] = max(errors.get(label, 0.0), relative)
    return errors


def gate_steps(
    *, device: str, dtype: torch.dtype, width: int, backend: str, batch: int = 2, steps: int = 35
) -> dict[str, float]:
    """The worst error of `steps` decoding steps from an empty state."""
    q, k, v = (torch.randn(batch, 2, steps, width, device=device, dtype=dtype) for _ in range(3))
    state = AttentionState.zeros(batch, 2, width, width, horizon=99, dtype=sum_dtype(dtype), device=device)
    with torch.no_grad():
        now = [slice(t, t + 1) for t in range(steps)]
        each = [attention_step(q[:, :, t], k[:, :, t], v[:, :, t], state, backend=backend) for t in now]
        same = attention_reference(q, k, v, causal=True, horizon=99)
        want = attention_reference(q.double(), k.double(), v.double(), causal=True, horizon=99)
    size = v.abs().max().item()  # of a mean of them
    return {"decoding step": _checked("decoding step", torch.cat(each, 2), same, want, size=size, factor=2)}


def _with_gradients(run, x: list[Tensor]) -> tuple[Tensor, ...]:
    q, k, v = (t.detach().requires_grad_() for t in x[:3])
    o = run(q, k, v)
    return o.detach(), *torch.autograd.grad(o, (q, k, v), x[3])


def _sizes(x: list[Tensor], causal: bool) -> list[float]:
    """The largest of the sums behind o, dq, dk and dv with absolute values in them: gradients cancel, rounding not."""
    q, k, v, do = x[0].relu(), x[1].relu(), x[2].abs(), x[3].abs()
    w = attention_weights(q, k, causal=causal, normalize=False)  # [B, H, T, T]
    cosines = attention_weights(torch.ones_like(q), torch.ones_like(k), causal=causal, normalize=False) / q.shape[-1]
    z = w.sum(-1, keepdim=True).clamp(min=1e-6)
    o = w @ v / z
    pull = (do @ v.mT + (do * o).sum(-1, keepdim=True)) * cosines / z
    return [s.max().item() for s in (o, pull @ k, pull.mT @ q, w.mT @ (do / z))]


def _checked(name: str, got: Tensor, same: Tensor, want: Tensor, *, size: float, factor: int) -> float:
    error, eager = (((x.double() - want).abs().max().item()) for x in (got, same))
    roundings = 3 if got.dtype != torch.float64 else 300  # the eager form has no error to compare with in float64
    bound = factor * eager + roundings * torch.finfo(got.dtype).eps * size
    if not error <= bound:
        raise RuntimeError(
            f"{name} is off by {error:.2e} from the float64 definition (allowed: {bound:.2e}): "
            "a wrong result is not timed"
        )
    return error
