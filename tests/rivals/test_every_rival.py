"""What all rivals share: saved and loaded, in low precision, beside other kinds, with rows that are all padding."""

from pathlib import Path

import pytest
import torch
from rival_checks import OPTIONS, gap, make
from small_models import tokens

from cosformer.models import KINDS


def test_all_are_here() -> None:
    rivals = {name for name, kind in KINDS.items() if kind.__module__.startswith("cosformer.rivals")}
    assert rivals == {case.split()[0] for case in OPTIONS}


@pytest.mark.parametrize("kind", OPTIONS)
def test_saved_and_loaded_it_answers_the_same(kind: str, tmp_path: Path) -> None:
    model = make(kind)
    for module in model.modules():  # drawn again once, so that a fresh draw at loading would show
        if hasattr(module, "renew"):
            module.renew()
    model.save_pretrained(tmp_path)
    again = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert gap(again(tokens(2, 30)).logits, model(tokens(2, 30)).logits) == 0
    assert again.config.attention_options == OPTIONS[kind]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("kind", OPTIONS)
def test_low_precision_trains_with_a_row_of_padding(kind: str, dtype: torch.dtype) -> None:
    model = make(kind, initializer_range=0.1).to(dtype).train()
    ids, mask = tokens(3, 33), torch.ones(3, 33, dtype=torch.long)
    mask[1], mask[2, :9] = 0, 0
    labels = ids.masked_fill(mask == 0, -100)
    out = model(ids, attention_mask=mask, labels=labels)
    out.loss.backward()
    assert out.logits.dtype == dtype
    assert out.logits[mask.bool()].isfinite().all()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # torch's rms_norm under autocast
@pytest.mark.parametrize("kind", OPTIONS)
def test_low_precision_is_near_float32(kind: str) -> None:
    """bf16 rounds at 2⁻⁸: two blocks of weights at 0.1 keep logits within a few per cent of their size."""
    model = make(kind, initializer_range=0.1)
    with torch.no_grad():
        exact = model(tokens(2, 33)).logits
        with torch.autocast("cpu", torch.bfloat16):
            low = model(tokens(2, 33)).logits.float()
    near = (low - exact).abs().mean() / exact.abs().mean()
    assert 0 < near < (0.25 if kind == "reformer" else 0.05)  # a hash that flips is no rounding


@pytest.mark.parametrize("kind", OPTIONS)
def test_beside_another_kind(kind: str) -> None:
    model = make(kind, first="cosformer")
    with torch.no_grad():
        assert model(tokens(2, 30)).logits.isfinite().all()


@pytest.mark.parametrize("kind", OPTIONS)
def test_checkpointed_blocks_have_the_same_gradients(kind: str) -> None:
    found = []
    for checkpointing in (False, True):
        model = make(kind).double().train()
        if checkpointing:
            model.gradient_checkpointing_enable()
        model(tokens(2, 24), labels=tokens(2, 24)).loss.backward()
        found.append([p.grad for p in model.parameters()])
    assert len(found[0]) > 20
    assert all(gap(a, b) < 1e-9 for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("kind", [kind for kind in OPTIONS if kind not in ("linear spe", "rfa spe")])
def test_it_compiles_whole(kind: str) -> None:
    model = make(kind)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")(tokens(2, 30), use_cache=False).logits
        assert gap(compiled, model(tokens(2, 30), use_cache=False).logits) == 0


BY_PIECES = ("rfa_gated", "linformer", "bigbird", "sparse", "reformer")
"""What cuts a packed row where its sequences end: no graph can know where."""


@pytest.mark.parametrize("kind", ["cosformer_nocos spe", "performer spe", "cosformer_nocos rotary", "performer rotary"])
def test_packed_rows_compile_whole_by_features(kind: str) -> None:
    assert kind.split()[0] not in BY_PIECES
    model, ids, found = make(kind, attention_options={"spe_redraw": 0} if "spe" in kind else {}), tokens(1, 30), []
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for bounds in ([0, 12, 13, 30], [0, 5, 20, 30]):
        for each in (compiled, model):
            model.zero_grad()
            loss = each(ids, labels=ids, use_cache=False, cu_seqlens=torch.tensor(bounds)).loss
            loss.backward()
            found.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
        assert all((a - b).norm() <= 1e-4 * b.norm() + 1e-6 for a, b in zip(*found[-2:], strict=True))
    assert not torch.equal(found[0][0], found[2][0])


@pytest.mark.parametrize("kind", BY_PIECES)
def test_packed_rows_by_pieces_are_refused_a_graph_with_the_reason(kind: str) -> None:
    model, ids, offsets = make(kind), tokens(1, 30), torch.tensor([0, 12, 13, 30])
    words = f"attention='{kind}' with cu_seqlens cannot be compiled or exported: shapes follow the lengths"
    torch._dynamo.reset()
    with torch.no_grad():
        with pytest.raises(torch._dynamo.exc.Unsupported, match=words):
            torch.compile(model, fullgraph=True, backend="eager")(ids, use_cache=False, cu_seqlens=offsets)
        torch._dynamo.reset()
        pieces = torch.compile(model, backend="eager")(ids, use_cache=False, cu_seqlens=offsets).logits
        assert gap(pieces, model(ids, use_cache=False, cu_seqlens=offsets).logits) < 1e-5
