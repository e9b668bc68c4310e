"""CosformerAttention keeps what nn.MultiheadAttention promises, also inside torch's transformer layers."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from nn.module_checks import E, H, assert_grads_equal, composed, draw, make, softmax_attention
from torch import Tensor, nn
from torch.testing import assert_close

import cosformer.nn.attention
from cosformer.nn import CosformerAttention


@pytest.fixture
def _softmax_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cosformer.nn.attention, "cosformer_attention", softmax_attention)


@pytest.mark.usefixtures("_softmax_inside")
@pytest.mark.parametrize("mask", [None, "bool", "float"])
@pytest.mark.parametrize("layout", ["batch_first", "batch_second", "unbatched"])
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"vdim": 10}, {"kdim": 18, "vdim": 10}],
    ids=["packed", "bare", "vdim", "kdim-vdim"],
)
def test_weights_of_multihead_attention_load_and_project_the_same(
    options: dict[str, Any], layout: str, mask: str | None
) -> None:
    options = {"dtype": torch.float64, "batch_first": layout == "batch_first"} | options
    theirs = nn.MultiheadAttention(E, H, **options)
    if theirs.in_proj_bias is not None:
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours = CosformerAttention(E, H, **options)
    ours.load_state_dict(theirs.state_dict())
    lead = {"batch_first": lambda n: (3, n), "batch_second": lambda n: (n, 3), "unbatched": lambda n: (n,)}[layout]
    query, key, value = draw(*lead(7), E), draw(*lead(5), ours.kdim), draw(*lead(5), ours.vdim)
    ignored = None
    if mask is not None:
        ignored = torch.zeros(5, dtype=torch.bool) if layout == "unbatched" else torch.zeros(3, 5, dtype=torch.bool)
        ignored[..., 3:] = True
        if mask == "float":
            ignored = torch.zeros(ignored.shape, dtype=torch.float64).masked_fill(ignored, float("-inf"))
    expected, _ = theirs(query, key, value, key_padding_mask=ignored)
    output, weights = ours(query, key, value, ignored)
    assert weights is None
    assert_close(output, expected)


@pytest.mark.usefixtures("_softmax_inside")
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "batch_second"])
def test_decoder_layer_calls_it_as_its_own(batch_first: bool) -> None:
    theirs = nn.TransformerDecoderLayer(E, H, 32, dropout=0.0, batch_first=batch_first, dtype=torch.float64)
    ours = copy.deepcopy(theirs)
    ours.self_attn, ours.multihead_attn = (make(batch_first=batch_first) for _ in range(2))  # pyright: ignore[reportAttributeAccessIssue]
    ours.load_state_dict(theirs.state_dict())
    x, memory = (draw(2, 7, E), draw(2, 5, E)) if batch_first else (draw(7, 2, E), draw(5, 2, E))
    options: dict[str, Any] = {
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(7, dtype=torch.float64), "tgt_is_causal": True,
        "memory_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    }  # fmt: skip
    assert_close(ours(x, memory, **options), theirs(x, memory, **options))


@pytest.mark.parametrize("options", [{}, {"kdim": 18, "vdim": 10}, {"bias": False}], ids=["packed", "separate", "bare"])
def test_parameters_start_as_those_of_multihead_attention(options: dict[str, Any]) -> None:
    torch.manual_seed(7)
    theirs = nn.MultiheadAttention(E, H, **options)
    torch.manual_seed(7)
    ours = CosformerAttention(E, H, **options)
    pairs = list(zip(ours.named_parameters(), theirs.named_parameters(), strict=True))
    assert pairs
    for (name, p), (their_name, their_p) in pairs:
        assert name == their_name
        assert torch.equal(p, their_p)


def test_positional_arguments_mean_what_they_mean_to_multihead_attention() -> None:
    values = (E, H, 0.5, False, False, False, 18, 10, True, "cpu", torch.float64)
    ours, theirs = CosformerAttention(*values), nn.MultiheadAttention(*values)
    for name in ("embed_dim", "num_heads", "dropout", "kdim", "vdim", "batch_first", "head_dim"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert {n: (p.shape, p.dtype) for n, p in ours.named_parameters()} == {
        n: (p.shape, p.dtype) for n, p in theirs.named_parameters()
    }


def encoder_layer(**options: Any) -> nn.TransformerEncoderLayer:
    """Everything the layer's own softmax path asks for, but for the attention in it."""
    layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    layer.self_attn = make(**options)  # pyright: ignore[reportAttributeAccessIssue]
    return layer


def composed_layer(layer: nn.TransformerEncoderLayer, x: Tensor, **options: Any) -> Tensor:
    attention: Any = layer.self_attn
    x = layer.norm1(x + composed(attention, x, x, x, **options))
    return layer.norm2(x + layer.linear2(F.relu(layer.linear1(x))))


@pytest.mark.parametrize("masks", ["none", "padding", "causal", "padding+causal"])
@pytest.mark.parametrize("mode", ["train", "eval", "eval-no_grad"])
def test_encoder_layer_computes_this_attention_and_not_softmax(mode: str, masks: str) -> None:
    layer, x = encoder_layer(), draw(2, 8, E)
    layer.train(mode == "train")
    ignored = torch.tensor([[False] * 8, [False] * 5 + [True] * 3]) if "padding" in masks else None
    causal = nn.Transformer.generate_square_subsequent_mask(8).isinf() if "causal" in masks else None
    with torch.set_grad_enabled(mode != "eval-no_grad"):
        output = layer(x, src_mask=causal, src_key_padding_mask=ignored)
    keep = None if ignored is None else ~ignored[:, None, None]
    assert_close(output, composed_layer(layer, x, causal=causal is not None, attn_mask=keep))


def test_encoder_layer_trains_this_attention() -> None:
    layer, x = encoder_layer(num_kv_heads=2), draw(2, 8, E)
    twin = copy.deepcopy(layer)
    layer(x).square().sum().backward()
    composed_layer(twin, x).square().sum().backward()
    assert_grads_equal(layer, twin)


def test_encoder_layer_would_bypass_an_attention_without_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    # if this fails, torch chooses in a new way which attention to bypass: read TransformerEncoderLayer.forward again
    monkeypatch.setattr(CosformerAttention, "_qkv_same_embed_dim", True)
    monkeypatch.setattr(CosformerAttention, "merge_masks", nn.MultiheadAttention.merge_masks, raising=False)
    layer, x = encoder_layer().eval(), draw(2, 8, E)
    with torch.no_grad():
        assert not torch.allclose(layer(x), composed_layer(layer, x))


def test_encoder_stack_in_eval_mode_with_padding() -> None:
    encoder = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False).eval()
    x, ignored = draw(2, 8, E), torch.tensor([[False] * 8, [False] * 5 + [True] * 3])
    with torch.no_grad():
        output = encoder(x, src_key_padding_mask=ignored)
    layers: list[Any] = list(encoder.layers)
    expected = x
    for layer in layers:
        expected = composed_layer(layer, expected, attn_mask=~ignored[:, None, None])
    assert_close(output, expected)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")  # torch, of itself
def test_encoder_stack_that_makes_nested_tensors_is_told_how_not_to() -> None:
    softmax_layer = nn.TransformerEncoderLayer(E, H, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    encoder = nn.TransformerEncoder(softmax_layer, 1).eval()
    encoder.layers[0].self_attn = make()  # after the stack made up its mind
    ignored = torch.tensor([[False] * 8, [False] * 5 + [True] * 3])
    with torch.no_grad(), pytest.raises(ValueError, match="use_nested_tensor to False"):
        encoder(draw(2, 8, E), src_key_padding_mask=ignored)
