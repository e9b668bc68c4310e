"""path="flex" of sparse and bigbird: the same as "gather", and no tile is skipped that holds a pair.

On a CPU torch's FlexAttention looks at no tile and has no gradient. So `dense_flex` stands for it, which does as the
kernel on a GPU would; torch's own is held against it, and is used for real in test_rivals_cuda.py.
"""

import functools
from typing import Any

import pytest
import rival_checks as checks
import torch
from small_models import small_config, swapped
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import AuxOutput

from cosformer.rivals import bigbird as bigbird_file
from cosformer.rivals import bigbird_attention, flex, sparse_attention
from cosformer.rivals.flex import TILE, takes_flex, tile_starts

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

CASES: dict[str, dict[str, Any]] = {
    "strided": {"pattern": "strided", "stride": 7},
    "strided-wide": {"pattern": "strided", "stride": 130},
    "fixed": {"pattern": "fixed", "stride": 7, "summary": 2},
    "fixed-wide": {"pattern": "fixed", "stride": 130, "summary": 9},
    "bigbird": {"block": 4, "random": 2, "seed": 3},
    "bigbird-64": {"block": 64, "random": 1},
    "bigbird-odd": {"block": 50, "random": 1},
}
BOTH_WAYS = [(name, False) for name in CASES] + [(name, True) for name in CASES if "bigbird" not in name]
LENGTH = 300


def attend(name: str, causal: bool, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None, path: str) -> Tensor:
    if "bigbird" in name:
        return bigbird_attention(q, k, v, key_mask=real, path=path, **CASES[name])
    return sparse_attention(q, k, v, key_mask=real, path=path, causal=causal, **CASES[name])


def dense_flex(
    q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, enable_gqa: bool, return_aux: Any, kernel_options: Any
) -> Any:
    """What the fused kernel computes: pairs that the mask allows, in tiles that are listed."""
    (b, h, t, width), s = q.shape, k.shape[2]
    assert enable_gqa == (h != k.shape[1])
    tiles = block_mask.to_dense().bool().repeat_interleave(TILE, 2).repeat_interleave(TILE, 3)[:, :, :t, :s]
    seen = pairs(block_mask.mask_mod, b, h, t, s) & tiles
    k, v = (x.repeat_interleave(h // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * width**-0.5).masked_fill(~seen, torch.finfo(q.dtype).min)
    some = seen.any(-1)
    lse = scores.logsumexp(-1).masked_fill(~some, -torch.inf)
    return (scores.softmax(-1) @ v).masked_fill(~some[..., None], 0), AuxOutput(lse=lse)


def pairs(sees: Any, b: int, h: int, t: int, s: int) -> Tensor:
    places = [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate((b, h, t, s))]
    return sees(*places).expand(b, h, t, s)


def inputs(dtype: torch.dtype = torch.float64, grad: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q = torch.randn(2, 4, LENGTH, 8, dtype=dtype, requires_grad=grad)
    k, v = (torch.randn(2, 2, LENGTH, n, dtype=dtype, requires_grad=grad) for n in (8, 5))
    return q, k, v, torch.arange(LENGTH) < torch.tensor([LENGTH, 140])[:, None]


@pytest.mark.parametrize(("name", "causal"), BOTH_WAYS)
def test_it_equals_gather_with_gradients(name: str, causal: bool) -> None:
    q, k, v, real = inputs(grad=True)
    rows = real[:, None].expand(-1, 4, -1)
    with swapped(flex, "flex_attention", dense_flex):
        slow, fast = (attend(name, causal, q, k, v, real, path) for path in ("gather", "flex"))
    assert checks.gap(fast[rows], slow[rows]) < 1e-13
    wanted, found = (torch.autograd.grad(o[rows].square().sum(), (q, k, v)) for o in (slow, fast))
    assert all(checks.gap(a, b) < 1e-11 for a, b in zip(found, wanted, strict=True))


def test_a_missing_tile_would_be_seen() -> None:
    def late(places: int, device: torch.device) -> Tensor:
        return tile_starts(places, device) + 200  # tiles seem to begin later than they do

    with swapped(bigbird_file, "tile_starts", late), pytest.raises(AssertionError):
        test_it_equals_gather_with_gradients("bigbird", False)


@pytest.mark.parametrize(("name", "causal"), BOTH_WAYS)
def test_no_tile_is_listed_for_nothing(name: str, causal: bool) -> None:
    """What a tile holds is computed, seen or not. Without padding, that is: tiles of sparse know nothing of it."""
    checked = 0

    def watched(q: Tensor, k: Tensor, v: Tensor, *, block_mask: Any, **rest: Any) -> Any:
        nonlocal checked
        t, s = q.shape[2], k.shape[2]
        seen = pairs(block_mask.mask_mod, q.shape[0], q.shape[1], t, s)
        seen = torch.nn.functional.pad(seen, (0, -s % TILE, 0, -t % TILE))
        held = seen.unflatten(3, (-1, TILE)).unflatten(2, (-1, TILE)).any(3).any(-1)
        listed = block_mask.to_dense().bool().expand_as(held)
        assert torch.equal(held.any(1).any(0), listed.any(1).any(0))
        checked += 1
        return dense_flex(q, k, v, block_mask=block_mask, **rest)

    with swapped(flex, "flex_attention", watched):
        attend(name, causal, *inputs()[:3], None, "flex")
    assert checked == (1 if "bigbird" in name else 2)


@pytest.mark.parametrize("name", ["strided", "fixed", "bigbird"])
def test_torchs_own_gives_the_same(name: str) -> None:
    torch._dynamo.reset()
    q, k, v, real = inputs()
    rows = real[:, None].expand(-1, 4, -1)
    fast = attend(name, True, q, k, v, real, "flex")
    assert checks.gap(fast[rows], attend(name, True, q, k, v, real, "gather")[rows]) < 1e-13


def test_a_query_without_keys_gives_zero() -> None:
    parts = [(torch.ones(2, 3), torch.full((2,), -torch.inf)), (torch.ones(2, 3) * 2, torch.tensor([-torch.inf, 1.0]))]
    assert flex.joined(parts).tolist() == [[0, 0, 0], [2, 2, 2]]


@pytest.mark.parametrize("kind", ["sparse", "bigbird"])
def test_in_models(kind: str) -> None:
    shape: dict[str, Any] = {"block": 4} if kind == "bigbird" else {"stride": 5, "summary": 2}
    slow, fast = (checks.encoder(kind, attention_options={**shape, "path": path}) for path in ("gather", "flex"))
    ids = checks.tokens(2, 45)
    with swapped(flex, "flex_attention", dense_flex):
        for side in ("left", "right"):
            checks.check_padding(fast, side)
        checks.check_packed(fast)
        checks.check_training(kind, causal=False, attention_options={**shape, "path": "flex"})
    with torch.no_grad():
        torch._dynamo.reset()
        whole = torch.compile(fast, fullgraph=True, backend="eager")(ids).logits
        assert checks.gap(whole, slow(ids).logits) < checks.TIGHT


class OnCuda:
    """What the choice looks at."""

    is_cuda = True

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self.shape, self.dtype = (1, 1, 1, width), dtype


def test_auto_takes_flex_on_cuda_and_says_why_where_it_cannot() -> None:
    wide, narrow, fine = OnCuda(64, torch.bfloat16), OnCuda(8, torch.bfloat16), OnCuda(64, torch.float64)
    assert takes_flex("auto", wide)  # pyright: ignore[reportArgumentType]
    assert not takes_flex("gather", wide)  # pyright: ignore[reportArgumentType]
    assert not takes_flex("auto", torch.ones(1, 1, 1, 64))
    for x, words in ((narrow, "heads of 16 or wider, and these have 8"), (fine, "no float64")):
        with pytest.warns(UserWarning, match=words):
            assert not takes_flex("auto", x)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match=words):
            takes_flex("flex", x)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="path='fast' is unknown"):
        small_config(attention="sparse", attention_options={"path": "fast"})


def test_no_variant_is_left_unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch runs the ninth variant of a function as it is, and says so in a log only."""

    def stand_in(x: Tensor, *, variant: str) -> Tensor:
        return x + (len(variant) if torch.compiler.is_compiling() else 0)

    def found() -> list[float]:
        torch._dynamo.reset()
        return [flex.fused(torch.zeros(1), variant="x" * n).item() for n in range(1, 13)]

    monkeypatch.setattr(flex, "flex_attention", stand_in)
    monkeypatch.setattr(flex, "_compiled", functools.cache(flex._compiled.__wrapped__))
    assert found() == list(range(1, 13))
    monkeypatch.setattr(flex, "VARIANTS", 8)
    with pytest.raises(FailOnRecompileLimitHit):
        found()
    with monkeypatch.context() as patch:  # what torch does by itself
        patch.setattr(flex, "fused", lambda *tensors, **options: flex._compiled()(*tensors, **options))
        assert found() == [*range(1, 9), 0, 0, 0, 0]
