"""Any strides, and no copy for the layout every transformer has."""

import pytest
import torch
from comparing import worst
from torch.utils._python_dispatch import TorchDispatchMode

from cosformer import cosformer_attention
from cosformer.ops.cpu import launch
from cosformer.ops.packed import batch_sequences
from cosformer.ops.problem import Problem

B, H, T, K = 2, 3, 70, 16


def as_projected(x: torch.Tensor) -> torch.Tensor:
    """[B, H, T, K] lying in memory as [B, T, H·K]."""
    return x.transpose(1, 2).reshape(B, T, H * K).view(B, T, H, K).transpose(1, 2)


LAYOUTS = {
    "projected": as_projected,
    "time first": lambda x: x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3),
    "width first": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every second": lambda x: torch.stack([x, x * torch.nan], -1).flatten(3)[..., ::2],
    "every second row": lambda x: torch.stack([x, x * torch.nan], 3).flatten(2, 3)[:, :, ::2],
    "odd offset": lambda x: torch.cat([x.flatten().new_full((1,), torch.nan), x.flatten()])[1:].view_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_strides(layout: str, causal: bool, dtype: torch.dtype, backend: str) -> None:
    x = [torch.randn(B, H, T, K).to(dtype) for _ in range(4)]
    y = [LAYOUTS[layout](t) for t in x]
    assert all(torch.equal(a, b) for a, b in zip(x, y, strict=True))
    runs = []
    for q, k, v, do in (x, y):
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        o = cosformer_attention(q, k, v, causal=causal, backend=backend)
        runs.append([o, *torch.autograd.grad(o, (q, k, v), do)])
    for a, b in zip(*runs, strict=True):  # sums may run in another order
        assert worst(a, b) <= 8 * torch.finfo(dtype).eps * a.abs().max().item()


def test_expanded_tensors(backend: str) -> None:
    q, k, v = (torch.randn(1, 1, T, K).expand(B, H, T, K) for _ in range(3))
    o = cosformer_attention(q, k, v, causal=True, backend=backend)
    want = cosformer_attention(*(x.contiguous() for x in (q, k, v)), causal=True, backend=backend)
    assert worst(o, want) == 0


def test_heads_merge_back_without_a_copy(backend: str) -> None:
    x = torch.randn(B, T, H * K)
    q = x.view(B, T, H, K).transpose(1, 2)
    o = cosformer_attention(q, q, q, causal=True, backend=backend)
    assert o.transpose(1, 2).is_contiguous()
    o.transpose(1, 2).view(B, T, H * K)


class Allocations(TorchDispatchMode):
    """The largest tensor torch makes while it is on."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple) else (out,):
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.untyped_storage().nbytes())
        return out


def test_no_copy_of_the_inputs(compiled: None) -> None:
    """Beyond the output the compiled kernel asks torch for nothing of the size of an input."""
    n = 4096
    q, k, v = (torch.randn(1, n, 4, 32).transpose(1, 2) for _ in range(3))
    problem = Problem(causal=True, theta=1e-4, feature_map="relu", normalize=True, eps=1e-6)
    with Allocations() as seen:
        results = launch.forward(q, k, v, None, None, None, batch_sequences(1, n, n), problem)
    assert results.o.nbytes == q.nbytes
    assert seen.largest == q.nbytes
