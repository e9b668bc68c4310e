"""On a GPU: every rival answers and learns as on the CPU; the two paths of patterns agree; nothing is quadratic."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from rival_checks import OPTIONS, make
from small_models import padded, tokens
from torch import Tensor

from cosformer.models import KINDS
from cosformer.rivals import bigbird_attention, sparse_attention

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),  # compilers warn of much
]
SIZES: dict[str, Any] = {"hidden_size": 128, "initializer_range": 0.1}  # heads of 32
CASES = list(OPTIONS)
DECODERS = [case for case in CASES if KINDS[case.split()[0]].causal_too and case != "reformer"]


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    torch._dynamo.reset()
    yield
    torch.set_float32_matmul_precision(before)


def small(case: str, **more: Any) -> Any:
    """Features enough that estimated sums stay away from zero, where a rounding would weigh much."""
    options = {"features": 64} if case.startswith(("rfa", "performer")) else {}
    more["attention_options"] = options | ({"spe_realisations": 32} if case.endswith("spe") else {})
    return make(case, **SIZES, **more)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """ids, mask, labels: rows of 70, 33 and 5 tokens, padded on the left."""
    ids, mask = padded([tokens(n, seed=n) for n in (70, 33, 5)], "left")
    return ids, mask, ids.masked_fill(mask == 0, -100)


def learned(model: Any) -> dict[str, Tensor]:
    """Loss, logits of real tokens and all gradients, as float64 on the CPU."""
    device = next(model.parameters()).device
    ids, mask, labels = (x.to(device) for x in batch())
    model.zero_grad()
    out = model(ids, attention_mask=mask, labels=labels, use_cache=False)
    out.loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    found |= {"loss": out.loss.detach(), "logits": out.logits.detach()[mask.bool()]}
    return {name: x.double().cpu() for name, x in found.items()}


def far(got: dict[str, Tensor], exact: dict[str, Tensor]) -> dict[str, float]:
    """How far each is off, as a share of its size; gradients share one size, since some are nearly zero."""
    assert got.keys() == exact.keys()
    size = max(x.norm() for name, x in exact.items() if name not in ("loss", "logits"))
    sizes = {"loss": exact["loss"].abs(), "logits": exact["logits"].norm()}
    assert all(x.isfinite().all() for x in got.values())
    return {name: float((got[name] - x).norm() / sizes.get(name, size)) for name, x in exact.items()}


@pytest.mark.parametrize("case", CASES)
def test_it_learns_as_the_cpu_does(case: str) -> None:
    """float32 on the GPU against float64 on the CPU: two small blocks lose five digits at most."""
    exact = learned(small(case).double())
    found = far(learned(small(case).cuda()), exact)
    assert max(found.values()) < 1e-3, found


@pytest.mark.parametrize("case", CASES)
def test_autocast_is_near(case: str) -> None:
    exact = learned(small(case))
    model = small(case).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        found = far(learned(model), exact)
    assert found["loss"] < 0.02, found
    assert max(found.values()) < (0.5 if case == "reformer" else 0.05), found  # a hash that flips is no rounding


@pytest.mark.parametrize("case", [case for case in CASES if " " not in case])
def test_compiled_it_learns_the_same(case: str) -> None:
    model = small(case, num_hidden_layers=1).cuda()
    plain = learned(model)
    ids = tokens(2, 90).cuda()
    whole = torch.compile(lambda x: model(x, labels=x, use_cache=False).loss, fullgraph=True)
    model.zero_grad()
    loss = whole(ids)
    loss.backward()
    compiled = {name: p.grad.double().cpu() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    eager = model(ids, labels=ids, use_cache=False).loss
    eager.backward()
    size = max(p.grad.double().norm().item() for p in model.parameters() if p.grad is not None)
    assert abs(loss.item() - eager.item()) < 1e-4 * abs(eager.item())
    assert compiled.keys() == plain.keys() - {"loss", "logits"}
    for name, p in model.named_parameters():
        assert p.grad is not None
        assert (compiled[name] - p.grad.double().cpu()).norm() < 1e-3 * size, name


@pytest.mark.parametrize("case", DECODERS)
@torch.no_grad()
def test_it_writes_what_the_cpu_writes(case: str) -> None:
    ids, mask, _ = batch()
    options: dict[str, Any] = {"max_new_tokens": 8, "do_sample": False}
    on_cpu = small(case).generate(ids, attention_mask=mask, **options)
    on_gpu = small(case).cuda().generate(ids.cuda(), attention_mask=mask.cuda(), **options)
    assert torch.equal(on_gpu.cpu(), on_cpu)


PATTERNS: dict[str, dict[str, Any]] = {
    "strided": {"pattern": "strided", "stride": 32},
    "strided-wide": {"pattern": "strided", "stride": 300},
    "fixed": {"pattern": "fixed", "stride": 32, "summary": 4},
    "bigbird-64": {"block": 64},
    "bigbird-128": {"block": 128, "random": 1},
    "bigbird-odd": {"block": 50},
}
BOTH_WAYS = [(name, False) for name in PATTERNS] + [(name, True) for name in PATTERNS if "bigbird" not in name]


def attend(name: str, causal: bool, x: list[Tensor], path: str, **more: Any) -> Tensor:
    if "bigbird" in name:
        return bigbird_attention(*x, path=path, **PATTERNS[name], **more)
    return sparse_attention(*x, causal=causal, path=path, **PATTERNS[name], **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("name", "causal"), BOTH_WAYS)
def test_the_two_paths_agree(name: str, causal: bool, dtype: torch.dtype) -> None:
    """Against float64 through "gather": flex is no worse than twice gather in its dtype (gradients: three times), but
    for one rounding, and one in fp32 for each of its blocks of 64 keys, where running sums are scaled anew."""
    t, width = 1_000, 64
    drawn = [torch.randn(2, heads, t, width, device="cuda").to(dtype) for heads in (6, 2, 2)]  # groups of three
    real = torch.arange(t, device="cuda") < torch.tensor([t, 437], device="cuda")[:, None]
    rows = real[:, None, :, None]
    found = []
    for path, kind in (("gather", torch.float64), ("gather", dtype), ("flex", dtype)):
        x = [y.to(kind).requires_grad_() for y in drawn]
        o = attend(name, causal, x, path, key_mask=real).masked_fill(~rows, 0)
        found.append([y.double() for y in (o, *torch.autograd.grad(o.double().square().sum(), x))])
    for factor, exact, slow, fast in zip((2, 3, 3, 3), *found, strict=True):
        off = [float((y - exact).norm() / exact.norm()) for y in (fast, slow)]
        floor = torch.finfo(dtype).eps + t / 64 * torch.finfo(torch.float32).eps
        assert off[0] <= factor * off[1] + floor, off


@pytest.mark.parametrize("path", ["gather", "flex"])
@pytest.mark.parametrize("name", ["strided-wide", "fixed", "bigbird-64"])
def test_nothing_quadratic_is_made(name: str, path: str) -> None:
    """65,536 tokens: a score for every pair, in two bytes, would be 8 GiB."""
    x = [torch.randn(1, 1, 65_536, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    torch.cuda.reset_peak_memory_stats()
    attend(name, True, x, path).float().square().sum().backward()
    assert torch.cuda.max_memory_allocated() < 4 * 2**30
    assert all(y.grad is not None and y.grad.isfinite().all() for y in x)


def test_auto_takes_flex_here() -> None:
    x = [torch.randn(1, 1, 200, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    assert torch.equal(attend("bigbird-64", False, x, "auto"), attend("bigbird-64", False, x, "flex"))
    narrow = [y[..., :8] for y in x]
    with pytest.warns(UserWarning, match="heads of 16 or wider"):
        attend("bigbird-64", False, narrow, "auto")
