"""torch.compile of the model and of generate, torch.export, ONNX: one graph, no recompilation, the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, HORIZON, padded, small_model, tokens
from torch import Tensor
from torch.testing import assert_close
from transformers import CompileConfig, DynamicCache, StaticCache

from cosformer.models import (
    CosformerForCausalLM,
    CosformerForConditionalGeneration,
    CosformerForMaskedLM,
    CosformerForSequenceClassification,
)

CLOSE = {"rtol": 1e-4, "atol": 1e-4}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> None:
    torch.compiler.reset()


class Counting:
    """A backend that runs graphs as they are and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward

    def __deepcopy__(self, memo: Any) -> "Counting":
        return self  # generate() copies its configs


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_compiled_model_is_one_graph_for_all_lengths(attention: str) -> None:
    model, count = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention]), Counting()
    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)
    for shape in ((2, 9), (3, 17), (4, 30)):
        ids = tokens(*shape)
        mask = torch.ones_like(ids)
        mask[0, :3] = 0
        assert_close(compiled(ids, mask, use_cache=False).logits, model(ids, mask, use_cache=False).logits, **CLOSE)
    assert count.graphs == 1


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_lengths_may_vary_where_nothing_is_padded(attention: str) -> None:
    """With torch 2.11 SDPA refuses a causal flag that depends on the length."""
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention])
    compiled = torch.compile(model, backend=Counting(), fullgraph=True, dynamic=True)
    for ids in (tokens(2, 9), tokens(3, 17)):
        assert_close(compiled(ids, use_cache=False).logits, model(ids, use_cache=False).logits, **CLOSE)


def test_packed_sequences_compile_too() -> None:
    model, count = small_model(CosformerForCausalLM, positions="learned"), Counting()
    compiled = torch.compile(model, backend=count, fullgraph=True, dynamic=True)
    for sizes in ((5, 13), (20, 9), (2, 40)):
        ids, cu = tokens(1, sum(sizes)), torch.tensor([0, sizes[0], sum(sizes)])
        want = model(ids, cu_seqlens=cu, labels=ids)
        got = compiled(ids, cu_seqlens=cu, labels=ids)
        assert_close(got.logits, want.logits, **CLOSE)
        assert_close(got.loss, want.loss, **CLOSE)
    assert count.graphs <= 2
    with pytest.raises(RuntimeError, match="takes packed sequences as cu_seqlens"):
        torch.compile(model, backend="eager")(tokens(1, 6), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]))


def test_a_compiled_model_trains() -> None:
    model = small_model(CosformerForCausalLM).train()
    ids, grads = tokens(2, 20), []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        run(ids, labels=ids).loss.backward()
        grads.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*grads, strict=True):
        assert_close(a, b, **CLOSE)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_pairs_of_all_lengths_train_by_few_graphs(attention: str) -> None:
    """As batches of translation come: both lengths change, and neither is told beforehand to be a variable."""
    model = small_model(
        CosformerForConditionalGeneration, attention=ATTENTIONS[attention], is_encoder_decoder=True,
        decoder_start_token_id=3,
    ).train()  # fmt: skip
    count = Counting()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    for sizes in ((16, 32), (32, 32), (48, 16), (16, 16), (64, 80), (80, 48), (32, 96), (96, 32)):
        (ids, mask), (targets, _) = (padded([tokens(n, seed=n), tokens(n - 5)], "right") for n in sizes)
        assert_close(compiled(ids, mask, labels=targets).loss, model(ids, mask, labels=targets).loss, **CLOSE)
    assert count.graphs <= 4  # the first as it is, and one more with each length that has changed


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
@torch.no_grad()
def test_decoding_steps_are_one_graph(attention: str) -> None:
    model, count = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention]), Counting()
    compiled = torch.compile(model, backend=count, fullgraph=True)
    ids = tokens(2, 30)
    cache = StaticCache(config=model.config, max_cache_len=40)
    model(ids[:, :10], past_key_values=cache)
    got = []
    for t in range(10, 30):
        masks = model.create_masks_for_generate(model.config, ids[:, t : t + 1, None], None, cache)
        got.append(compiled(ids[:, t : t + 1], masks, past_key_values=cache).logits)
    assert_close(torch.cat(got, 1), model(ids, use_cache=False).logits[:, 10:], **CLOSE)
    assert count.graphs == 1
    assert cache.get_seq_length() == 30
    assert_close(model(ids[:, :1], past_key_values=cache).logits[:, 0], _again(model, ids), **CLOSE)  # eager goes on


def _again(model: Any, ids: Tensor) -> Tensor:
    return model(torch.cat([ids, ids[:, :1]], 1), use_cache=False).logits[:, -1]


@torch.no_grad()
def test_a_compiled_step_refuses_the_horizon_too() -> None:
    model = small_model(CosformerForCausalLM, horizon=12)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    cache = DynamicCache(config=model.config)
    model(tokens(1, 10), past_key_values=cache)
    for _ in range(2):
        compiled(tokens(1, 1), past_key_values=cache)
    with pytest.raises(RuntimeError, match="horizon is reached"):
        compiled(tokens(1, 1), past_key_values=cache)


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
def test_compiled_generate(attention: str) -> None:
    """transformers compiles the step by itself where there is a GPU; here it is told to."""
    model = small_model(CosformerForCausalLM, attention=ATTENTIONS[attention])
    ids, mask = padded([tokens(n, seed=n) for n in (9, 14)], "left")
    count = Counting()
    config = CompileConfig(backend=count, mode=None, fullgraph=True)  # pyright: ignore[reportArgumentType]
    config._compile_all_devices = True
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    got = model.generate(ids, cache_implementation="static", compile_config=config, **options)
    assert torch.equal(got, model.generate(ids, **options))
    assert count.graphs == 1


def test_compiled_generate_of_an_encoder_decoder() -> None:
    model = small_model(CosformerForConditionalGeneration, is_encoder_decoder=True, decoder_start_token_id=3)
    ids, mask = padded([tokens(n, seed=n) for n in (9, 14)], "right")
    count = Counting()
    config = CompileConfig(backend=count, mode=None, fullgraph=True)  # pyright: ignore[reportArgumentType]
    config._compile_all_devices = True
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 12, "do_sample": False}
    got = model.generate(ids, cache_implementation="static", compile_config=config, **options)
    assert torch.equal(got, model.generate(ids, **options))
    assert 1 <= count.graphs <= 2


@torch.no_grad()
def test_inductor_compiles_a_step() -> None:
    model = small_model(CosformerForCausalLM, num_hidden_layers=1)
    compiled, cache = (
        torch.compile(model, fullgraph=True),
        DynamicCache(config=small_model(CosformerForCausalLM).config),
    )
    cache.layers = cache.layers[:1]
    ids = tokens(2, 14)
    model(ids[:, :10], past_key_values=cache)
    got = torch.cat([compiled(ids[:, t : t + 1], past_key_values=cache).logits for t in range(10, 14)], 1)
    assert_close(got, model(ids, use_cache=False).logits[:, 10:], **CLOSE)


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (CosformerForCausalLM, {"attention": ["cosformer", "softmax"]}),
        (CosformerForMaskedLM, {"causal": False, "positions": "rotary"}),
    ],
)
def test_export_with_any_batch_and_length(cls: type, options: dict[str, Any]) -> None:
    model = small_model(cls, **options)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=HORIZON)
    shapes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    if cls is CosformerForCausalLM:
        model.config.use_cache = False
    example = {"input_ids": tokens(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    program = torch.export.export(model, (), example, dynamic_shapes=shapes).module()
    for b, t in ((3, 31), (5, HORIZON)):
        ids, mask = tokens(b, t), torch.ones(b, t, dtype=torch.long)
        mask[0, :5] = 0
        assert_close(program(input_ids=ids, attention_mask=mask).logits, model(ids, mask).logits, **CLOSE)


ENCODERS: dict[str, dict[str, Any]] = {
    "learned-grouped": {"positions": "learned"},
    "hybrid-rotary-norm": {
        "positions": "rotary", "attention": ["cosformer", "softmax"], "normalizer": "norm", "feature_map": "silu",
    },
}  # fmt: skip


@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch.onnx itself, torch 2.13
def test_onnx_with_any_batch_and_length(options: dict[str, Any], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from cosformer.models.onnx import export_onnx

    model = small_model(CosformerForSequenceClassification, causal=False, num_labels=3, **options)
    export_onnx(model, tmp_path / "encoder.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "encoder.onnx")
    for b, t in ((1, 1), (3, 17), (2, HORIZON)):
        ids, mask = tokens(b, t), torch.ones(b, t, dtype=torch.long)
        mask[0, : t // 2] = 0
        got = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        assert_close(torch.from_numpy(got), model(ids, mask).logits, **CLOSE)


def test_onnx_refuses_a_causal_model(tmp_path: Path) -> None:
    from cosformer.models.onnx import export_onnx

    with pytest.raises(ValueError, match="export an encoder"):
        export_onnx(small_model(CosformerForCausalLM), tmp_path / "x.onnx")
