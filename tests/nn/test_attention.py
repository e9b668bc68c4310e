"""CosformerAttention: the defects of the published module first, then the promises of nn.MultiheadAttention, then ours.

Where nothing else is said modules and inputs are float64, so that equal means equal to about 1e-7.
"""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.testing import assert_close

import cosformer.nn.attention
from cosformer import AttentionState, attention_reference, attention_weights
from cosformer.nn import CosformerAttention

E, H, M = 24, 4, 64  # width, heads, horizon


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def make(embed_dim: int = E, num_heads: int = H, **options: Any) -> CosformerAttention:
    """A module in float64, batch first, whose biases are not zero: a bias forgotten somewhere must show."""
    options = {"dtype": torch.float64, "batch_first": True, "horizon": M} | options
    module = CosformerAttention(embed_dim, num_heads, **options)
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.normal_()
    return module


def draw(*shape: int, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=grad)


def projections(module: CosformerAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [B, H, T, K] of batch-first inputs, from the parameters by name."""
    p = dict(module.named_parameters())
    width = module.embed_dim // module.num_heads
    e, kv = module.embed_dim, module.num_kv_heads * width
    if "in_proj_weight" in p:
        w = (p["in_proj_weight"][:e], p["in_proj_weight"][e : e + kv], p["in_proj_weight"][e + kv :])
    else:
        w = (p["q_proj_weight"], p["k_proj_weight"], p["v_proj_weight"])
    b = p.get("in_proj_bias", torch.zeros(e + 2 * kv, dtype=query.dtype))
    flat = (query @ w[0].T + b[:e], key @ w[1].T + b[e : e + kv], value @ w[2].T + b[e + kv :])
    q, k, v = (x.reshape(*x.shape[:2], -1, width).permute(0, 2, 1, 3) for x in flat)
    return q, k, v


def composed(module: CosformerAttention, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """What the module must return for batch-first inputs: the quadratic definition between plain products."""
    names = ("horizon", "feature_map", "normalize", "eps")
    options = {name: getattr(module, name) for name in names} | options
    o = attention_reference(*projections(module, query, key, value), **options)
    p = dict(module.named_parameters())
    output = o.permute(0, 2, 1, 3).reshape(*query.shape[:2], -1) @ p["out_proj.weight"].T
    return output + p["out_proj.bias"] if "out_proj.bias" in p else output


def assert_grads_equal(ours: nn.Module, theirs: nn.Module) -> None:
    theirs_by_name = dict(theirs.named_parameters())
    assert theirs_by_name
    for name, p in ours.named_parameters():
        assert p.grad is not None, name
        assert_close(p.grad, theirs_by_name[name].grad, msg=lambda m, name=name: f"{name}: {m}")


# --- each defect found in the published module ----------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_change_valid_outputs(side: str, causal: bool) -> None:
    module, x = make(causal=causal), draw(2, 9, E)
    junk = torch.full((2, 4, E), float("nan"), dtype=torch.float64)
    padded = torch.cat([x, junk] if side == "right" else [junk, x], 1)
    ignored = padded.isnan().any(-1)  # [B, S]
    valid = slice(0, 9) if side == "right" else slice(4, 13)
    assert_close(module(padded, key_padding_mask=ignored)[0][:, valid], module(x)[0])


def test_longer_sequence_keeps_the_outputs_of_its_prefix() -> None:
    module, x = make(causal=True, horizon=M), draw(1, 40, E)
    assert_close(module(x)[0][:, :23], module(x[:, :23])[0])
    module.horizon = None  # as published: the horizon follows the length
    assert (module(x)[0][:, :23] - module(x[:, :23])[0]).abs().max() > 1e-3


def test_fp16_rows_without_weight_are_zero_and_differentiable() -> None:
    module = make(dtype=torch.float16, bias=False)
    assert module.in_proj_weight is not None
    x = torch.rand(2, 10, E).half() + 0.5
    x[:, 3:6] *= -1  # with positive weights relu kills these queries and keys
    with torch.no_grad():
        module.in_proj_weight.abs_()
    x.requires_grad_()
    output, _ = module(x)
    output.float().square().sum().backward()
    assert output.dtype == torch.float16
    assert (output[:, 3:6] == 0).all()
    rows = [0, 1, 2, 6, 7, 8, 9]
    exact = copy.deepcopy(module).double()
    assert_close(output[:, rows].double(), exact(x.double())[0][:, rows], atol=4e-3, rtol=4e-3)
    assert output[:, rows].abs().min() > 0
    for grad in (x.grad, module.in_proj_weight.grad, module.out_proj.weight.grad):
        assert grad is not None
        assert grad.isfinite().all()


def test_elu_runs_forward_and_backward() -> None:
    module, x = make(feature_map="elu1"), draw(2, 11, E)
    twin = copy.deepcopy(module)
    output, expected = module(x)[0], composed(twin, x, x, x)
    assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert_grads_equal(module, twin)


def test_vdim_is_honoured_without_kdim() -> None:
    module, query, key, value = make(vdim=10), draw(2, 7, E), draw(2, 5, E), draw(2, 5, 10)
    assert module.v_proj_weight is not None
    assert module.v_proj_weight.shape == (E, 10)
    assert_close(module(query, key, value)[0], composed(module, query, key, value))


def test_omitted_value_takes_the_key() -> None:
    module, query, key = make(), draw(2, 6, E), draw(2, 6, E)
    assert_close(module(query, key)[0], module(query, key, key)[0])
    assert not torch.allclose(module(query, key)[0], module(query, key, query)[0])


def test_dropout_is_applied_in_training_only() -> None:
    module, x = make(dropout=0.25, bias=False), draw(4, 50, E)
    with torch.no_grad():
        module.out_proj.weight.copy_(torch.eye(E))  # shows what was dropped
    whole = module.eval()(x)[0]
    assert_close(whole, composed(module, x, x, x))
    some = module.train()(x)[0]
    dropped = (some == 0) & (whole != 0)
    assert 0.22 < dropped.double().mean() < 0.28
    assert_close(some, torch.where(dropped, 0, whole / 0.75))


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that `call` holds at once beyond what was there, by the record of the CPU allocator."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    results: Any = record.profiler
    events = [(e.start_ns(), e.nbytes()) for e in results.kineto_results.events() if e.name() == "[memory]"]
    assert events
    held = peak = 0
    for _, nbytes in sorted(events):
        held += nbytes
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_causal_training_memory_is_linear_in_length(backend: str) -> None:
    e, h = 64, 2
    module = CosformerAttention(e, h, causal=True, batch_first=True, backend=backend)

    def train(t: int) -> int:
        x = torch.randn(1, t, e)
        return peak_bytes(lambda: module(x)[0].sum().backward())

    train(64)  # what is made once: gradients of parameters, the compiled kernel
    for t in (2_048, 16_384):
        assert train(t) < 16 * t * e * 4  # the published tensor alone: T · H · 2K · V = 64 · T · E
    assert module.in_proj_weight is not None
    assert module.in_proj_weight.grad is not None
    assert module.in_proj_weight.grad.isfinite().all()


def test_memory_gauge_sees_the_published_tensor() -> None:
    t, e, h = 512, 64, 2
    phi, v = torch.rand(1, h, t, 2 * e // h), torch.rand(1, h, t, e // h)
    peak = peak_bytes(lambda: torch.einsum("bhtf,bhtv->bhtfv", phi, v).cumsum(2))
    assert peak > 64 * t * e * 4


def test_causal_with_fewer_queries_than_keys_takes_the_last_positions() -> None:
    module, x = make(causal=True), draw(2, 12, E)
    assert_close(module(x[:, 7:], x)[0], module(x)[0][:, 7:])


# --- nn.MultiheadAttention -------------------------------------------------------------------------------------------


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, key_mask: Tensor | None, **_: object) -> Tensor:
    """In place of the operator it turns the module into nn.MultiheadAttention, if all around it is right."""
    keep = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
    if causal:
        keep = keep.tril()
    if key_mask is not None:
        keep = keep & key_mask[:, None, None]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


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


# --- equal to the definition ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"num_kv_heads": 2}, {"num_kv_heads": 1, "kdim": 18, "vdim": 10},
        {"bias": False, "normalize": False}, {"feature_map": "silu", "eps": 5.0},
    ],
    ids=["plain", "grouped", "one-kv-head-kdim-vdim", "bare-unnormalised", "silu-large-eps"],
)  # fmt: skip
def test_output_and_gradients_match_the_definition(options: dict[str, Any], causal: bool) -> None:
    module = make(**options)
    twin = copy.deepcopy(module)
    query, key, value = draw(2, 7, E), draw(2, 11, module.kdim), draw(2, 11, module.vdim)
    ignored = torch.zeros(2, 11, dtype=torch.bool)
    ignored[1, 2:5] = True
    ours = [x.clone().requires_grad_() for x in (query, key, value)]
    theirs = [x.clone().requires_grad_() for x in (query, key, value)]
    output, _ = module(*ours, key_padding_mask=ignored, is_causal=causal)
    expected = composed(twin, *theirs, causal=causal, attn_mask=~ignored[:, None, None])
    assert_close(output, expected)
    by = torch.randn_like(output)
    (output * by).sum().backward()
    (expected * by).sum().backward()
    for x, y in zip(ours, theirs, strict=True):
        assert_close(x.grad, y.grad)
    assert_grads_equal(module, twin)


def test_self_attention_gradients_match_the_definition() -> None:
    module, x = make(num_kv_heads=2), draw(2, 9, E, grad=True)
    twin, y = copy.deepcopy(module), x.detach().clone().requires_grad_()
    module(x)[0].square().sum().backward()
    composed(twin, y, y, y).square().sum().backward()
    assert_close(x.grad, y.grad)
    assert_grads_equal(module, twin)


def test_grouped_heads_equal_repeated_ones() -> None:
    few, x = make(num_kv_heads=2), draw(2, 9, E)
    full = make()
    width, kv = E // H, 2 * (E // H)
    assert few.in_proj_weight is not None
    assert few.in_proj_weight.shape == (E + 2 * kv, E)

    def repeated(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (2, width)).repeat_interleave(2, 0).flatten(0, 1)

    tensors = few.state_dict()
    for name in ("in_proj_weight", "in_proj_bias"):
        q, k, v = tensors[name].split([E, kv, kv])
        tensors[name] = torch.cat([q, repeated(k), repeated(v)])
    full.load_state_dict(tensors)
    assert_close(few(x)[0], full(x)[0])


def test_batch_second_equals_batch_first_and_unbatched() -> None:
    first = make(causal=True)
    second = make(causal=True, batch_first=False)
    second.load_state_dict(first.state_dict())
    x, memory = draw(3, 8, E), draw(3, 8, E)
    expected, weights = first(x, memory, need_weights=True)
    output, same_weights = second(x.transpose(0, 1), memory.transpose(0, 1), need_weights=True)
    assert_close(output.transpose(0, 1), expected)
    assert_close(same_weights, weights)
    for module in (first, second):
        output, row_weights = module(x[1], memory[1], need_weights=True)
        assert_close(output, expected[1])
        assert_close(row_weights, weights[1])


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"feature_map": "silu", "eps": 5.0}], ids=str)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
def test_weights_are_those_of_the_definition_and_make_the_output(causal: bool, options: dict[str, Any]) -> None:
    module, query, key = make(num_kv_heads=2, **options), draw(2, 6, E), draw(2, 9, E)
    ignored = torch.zeros(2, 9, dtype=torch.bool)
    ignored[0, 5:7] = True
    call: dict[str, Any] = {"need_weights": True, "is_causal": causal, "key_padding_mask": ignored}
    output, weights = module(query, key, average_attn_weights=False, **call)
    q, k, v = projections(module, query, key, key)
    assert weights.shape == (2, H, 6, 9)
    expected = attention_weights(q, k, causal=causal, horizon=M, attn_mask=~ignored[:, None, None], **options)
    assert_close(weights, expected)
    attended = weights @ v.repeat_interleave(2, 1)  # [B, H, T, V]
    assert_close(module.out_proj(attended.transpose(1, 2).flatten(2)), output)
    same_output, average = module(query, key, **call)
    assert_close(same_output, output)
    assert_close(average, weights.mean(1))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float64])
def test_causal_masks_of_every_kind_mean_is_causal(dtype: torch.dtype) -> None:
    module, x = make(), draw(2, 7, E)
    expected, _ = module(x, is_causal=True)
    assert_close(expected, composed(module, x, x, x, causal=True))
    square = torch.ones(7, 7, dtype=torch.bool).triu(1)
    late = torch.ones(3, 7, dtype=torch.bool).triu(5)  # the last 3 of 7 positions
    if dtype != torch.bool:
        square, late = (torch.zeros(m.shape, dtype=dtype).masked_fill(m, float("-inf")) for m in (square, late))
    assert_close(module(x, attn_mask=square)[0], expected)
    assert_close(module(x, attn_mask=square, is_causal=True)[0], expected)
    assert_close(module(x, attn_mask=square.expand(2 * H, 7, 7))[0], expected)
    assert_close(module(x[:, 4:], x, attn_mask=late)[0], expected[:, 4:])


def test_nothing_to_attend_gives_the_bias_of_the_output() -> None:
    module, x = make(), draw(2, 5, E, grad=True)
    output, _ = module(x, key_padding_mask=torch.ones(2, 5, dtype=torch.bool))
    assert_close(output, module.out_proj.bias.expand_as(output))
    output.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


# --- states ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch_first", "batch_second"])
def test_pieces_equal_one_pass_with_gradients(batch_first: bool) -> None:
    module = make(causal=True, num_kv_heads=2, batch_first=batch_first)
    twin, time = copy.deepcopy(module), 1 if batch_first else 0
    x = draw(2, 30, E) if batch_first else draw(30, 2, E)
    ignored = torch.zeros(2, 30, dtype=torch.bool)
    ignored[0, 10:16] = True
    whole, after_whole = module(x, key_padding_mask=ignored, return_state=True)
    outputs, state, at = [], None, 0
    for n in (1, 12, 17):
        piece = x.narrow(time, at, n)
        output, state = twin(piece, key_padding_mask=ignored[:, at : at + n], state=state, return_state=True)
        outputs.append(output)
        at += n
    assert at == 30
    assert isinstance(state, AttentionState)
    pieces = torch.cat(outputs, time)
    assert_close(pieces, whole)
    assert_close(state.sums, after_whole.sums)
    assert_close(state.norm, after_whole.norm)
    assert state.length == after_whole.length == 30
    assert state.horizon == M
    whole.square().sum().backward()
    pieces.square().sum().backward()
    assert_grads_equal(twin, module)


@pytest.mark.parametrize("options", [{}, {"normalize": False}, {"feature_map": "silu", "eps": 5.0}], ids=str)
@pytest.mark.parametrize("layout", ["batch_first", "batch_second", "unbatched"])
def test_steps_equal_one_pass(layout: str, options: dict[str, Any]) -> None:
    module = make(causal=True, num_kv_heads=2, batch_first=layout == "batch_first", **options).eval()
    x = {"batch_first": draw(2, 6, E), "batch_second": draw(6, 2, E), "unbatched": draw(6, E)}[layout]
    time = 1 if layout == "batch_first" else 0
    state = module.initial_state(1 if layout == "unbatched" else 2)
    with torch.no_grad():
        steps = torch.cat([module.step(x.narrow(time, t, 1), state) for t in range(6)], time)
        whole, after = module(x, return_state=True)
    assert_close(steps, whole)
    assert_close(state.sums, after.sums)
    assert state.length == 6


def test_step_refuses_to_lose_gradients() -> None:
    module = make(causal=True)
    with pytest.raises(RuntimeError, match=r"torch\.no_grad"):
        module.step(draw(2, 1, E), module.initial_state(2))


# --- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"add_bias_kv": True}, "add_bias_kv=True: .*no position"),
        ({"add_zero_attn": True}, "add_zero_attn=True: .*no position"),
        ({"num_heads": 5}, "embed_dim=24 with num_heads=5"),
        ({"num_kv_heads": 3}, "num_heads=4 with num_kv_heads=3"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"embed_dim": -4}, "embed_dim=-4"),
        ({"num_kv_heads": 0}, "num_kv_heads=0"),
        ({"kdim": 0}, "kdim=0"),
        ({"vdim": 0}, "vdim=0"),
        ({"dropout": 1.5}, "dropout=1.5"),
        ({"horizon": 0}, "horizon=0"),
        ({"feature_map": "elu"}, "feature_map='elu' is unknown"),
        ({"backend": "fast"}, "backend='fast' is unknown"),
        ({"eps": 0.0}, "eps=0.0"),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_constructor_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**options)


def zeros(*shape: int, **options: Any) -> Tensor:
    return torch.zeros(*shape, **options)


ANTICAUSAL = torch.ones(6, 6, dtype=torch.bool).tril(-1)
SOFT = torch.zeros(6, 6, dtype=torch.float64).masked_fill(torch.ones(6, 6, dtype=torch.bool).triu(1), -1e9)


@pytest.mark.parametrize(
    ("shapes", "options", "error", "message"),
    [
        ([(6,)], {}, ValueError, "query has 1 dimensions"),
        ([(2, 2, 6, E)], {}, ValueError, "query has 4 dimensions"),
        ([(2, 6, E), (6, E)], {}, ValueError, "key has 2 dimensions"),
        ([(2, 6, 10)], {}, ValueError, "query has width 10"),
        ([(2, 6, E), (2, 6, 10)], {}, ValueError, "key has width 10"),
        ([(2, 6, E), (2, 6, E), (2, 6, 10)], {}, ValueError, "value has width 10"),
        ([(2, 6, E), (3, 6, E)], {}, ValueError, "batch sizes 2, 3, 3"),
        ([(2, 6, E), (2, 6, E), (2, 5, E)], {}, ValueError, "S=6 positions but v has 5"),
        ([(2, 7, E), (2, 6, E)], {"is_causal": True}, ValueError, "T=7 > S=6"),
        ([(2, M + 1, E)], {}, ValueError, "horizon=64 but .* 65 positions"),
        ([(2, 6, E)], {"key_padding_mask": zeros(6, 2, dtype=torch.bool)}, ValueError, r"\[B, S\] = \[2, 6\]"),
        ([(6, E)], {"key_padding_mask": zeros(1, 6, dtype=torch.bool)}, ValueError, r"\[S\] without a batch"),
        ([(2, 6, E)], {"key_padding_mask": zeros(2, 6, dtype=torch.int64)}, TypeError, "it must be bool"),
        ([(2, 6, E)], {"key_padding_mask": zeros(2, 6) - 1e9}, ValueError, "other than 0 and -inf"),
        ([(2, 6, E)], {"key_padding_mask": zeros(2, 6) + float("nan")}, ValueError, "other than 0 and -inf"),
        ([(2, 6, E)], {"attn_mask": ANTICAUSAL}, ValueError, r"linear time.*cosformer\.attention_reference"),
        ([(2, 6, E)], {"attn_mask": ANTICAUSAL, "is_causal": True}, ValueError, "linear time"),
        ([(2, 6, E)], {"attn_mask": SOFT}, ValueError, "linear time"),
        ([(2, 6, E)], {"attn_mask": zeros(6, 6)}, ValueError, "linear time"),
        ([(2, 6, E)], {"attn_mask": zeros(6, 6, dtype=torch.int64)}, ValueError, r"torch\.int64"),
        ([(2, 3, E), (2, 6, E)], {"attn_mask": ANTICAUSAL.T}, ValueError, r"shape \(6, 6\) for .* T=3, S=6"),
        ([(2, 3, E), (2, 6, E)], {"attn_mask": ANTICAUSAL.T[:3]}, ValueError, "linear time"),  # top left
    ],
)  # fmt: skip
def test_forward_refuses(
    shapes: list[tuple[int, ...]], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    inputs = [draw(*shape) for shape in shapes]
    with pytest.raises(error, match=message):
        make()(*inputs, **options)


def test_states_refuse_what_they_cannot_do() -> None:
    module, x = make(causal=True), draw(2, 6, E)
    _, state = module(x, return_state=True)
    with pytest.raises(ValueError, match="not causal"):
        make()(x, state=state)
    with pytest.raises(ValueError, match="need_weights"):
        module(x, state=state, need_weights=True)
    with pytest.raises(ValueError, match="need_weights"):
        module(x, return_state=True, need_weights=True)
    with pytest.raises(ValueError, match="horizon=64 but the state was made with horizon=80"):
        module(x, state=make(horizon=80).initial_state(2))
    with pytest.raises(ValueError, match="59 positions after 6 held"):
        module(draw(2, 59, E), state=state)
    unbounded = make(causal=True, horizon=None)
    with pytest.raises(ValueError, match="needs a horizon"):
        unbounded(x, return_state=True)
    with pytest.raises(ValueError, match="needs a horizon"):
        unbounded.initial_state(2)


# --- torch around it -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"num_kv_heads": 2}, {"kdim": 18, "vdim": 10}, {"bias": False}])
def test_state_dict_round_trip(options: dict[str, Any]) -> None:
    module, query = make(**options), draw(2, 6, E)
    key, value = draw(2, 6, module.kdim), draw(2, 6, module.vdim)
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    other = make(**options)
    assert not torch.allclose(other(query, key, value)[0], module(query, key, value)[0])
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(query, key, value)[0], module(query, key, value)[0])


def test_repr_names_what_was_chosen() -> None:
    assert "24, 4, num_kv_heads=2, causal=True, horizon=64, feature_map='elu1'" in repr(
        make(num_kv_heads=2, causal=True, feature_map="elu1")
    )


def test_autocast_gives_bfloat16_near_float32() -> None:
    module, x = make(dtype=torch.float32, causal=True, bias=False), torch.randn(2, 40, E)
    exact, exact_weights = module(x, need_weights=True)
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = module(x, need_weights=True)
        q, k, _ = projections(module, x, x, x)
    output.float().sum().backward()
    assert output.dtype == weights.dtype == torch.bfloat16
    in_float32 = attention_weights(q.bfloat16(), k.bfloat16(), causal=True, horizon=M).mean(1)
    assert torch.equal(weights, in_float32.bfloat16())  # autocast rounds the projections, not the sums
    for low, high in ((output, exact), (weights, exact_weights)):
        # every product is rounded to 8 bits on its way: 2^-6 of the largest value
        assert_close(low.float(), high, rtol=0, atol=high.abs().max().item() / 64)
    assert module.in_proj_weight is not None
    assert module.in_proj_weight.grad is not None
    assert module.in_proj_weight.grad.isfinite().all()


def test_backend_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []

    def note(q: Tensor, *_: object, backend: str, **__: object) -> Tensor:
        chosen.append(backend)
        return q

    monkeypatch.setattr(cosformer.nn.attention, "cosformer_attention", note)
    monkeypatch.setattr(cosformer.nn.attention, "attention_step", note)
    module = make(backend="torch")
    module(draw(2, 6, E))
    module.step(draw(2, 1, E), module.initial_state(2))
    assert chosen == ["torch", "torch"]


def test_projections_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def note(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        seen.extend((q, k, v))
        return softmax_attention(q, k, v, **options)

    monkeypatch.setattr(cosformer.nn.attention, "cosformer_attention", note)
    for batch_first in (True, False):
        seen.clear()
        make(batch_first=batch_first)(draw(2, 6, E))
        assert len({x.untyped_storage().data_ptr() for x in seen}) == 1  # one product, three views of it
        assert seen[0].untyped_storage().nbytes() == 2 * 6 * 3 * E * 8


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch, of itself
def test_compiles_into_one_graph_that_still_refuses_masks() -> None:
    module, x = make(num_kv_heads=2), draw(2, 6, E)
    twin = copy.deepcopy(module)
    compiled = torch.compile(module, fullgraph=True)
    causal = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    padding = torch.zeros(2, 6, dtype=torch.float64)
    padding[0, 4:] = float("-inf")
    output, _ = compiled(x, key_padding_mask=padding, attn_mask=causal)
    expected, _ = twin(x, key_padding_mask=padding, attn_mask=causal)
    assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    assert_grads_equal(module, twin)
    with pytest.raises(RuntimeError, match="other than 0 and -inf"):
        compiled(x, key_padding_mask=padding.clamp(min=-1e9), attn_mask=causal)
    with pytest.raises(RuntimeError, match="linear time"):
        compiled(x, key_padding_mask=padding, attn_mask=causal.T.contiguous())
