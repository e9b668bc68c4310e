"""On a GPU: the same tokens as on the CPU, nothing that waits for the device, and steps captured in a CUDA graph."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, padded, small_model, tokens
from torch import Tensor
from torch.testing import assert_close
from transformers import DynamicCache, StaticCache

from cosformer.models import CosformerForCausalLM, CosformerForConditionalGeneration

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]
SIZES: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}  # heads of 32


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
    torch.cuda.set_sync_debug_mode("default")


def make(**options: Any) -> Any:
    return small_model(CosformerForCausalLM, **SIZES | options).cuda()


@pytest.mark.parametrize("attention", ATTENTIONS)
@torch.no_grad()
def test_the_cpu_writes_the_same(attention: str) -> None:
    model = make(attention=ATTENTIONS[attention])
    ids, mask = padded([tokens(n, seed=n) for n in (3, 9, 17)], "left")
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    got = model.generate(ids.cuda(), attention_mask=mask.cuda(), **options).cpu()
    assert torch.equal(got, model.cpu().generate(ids, attention_mask=mask, **options))


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
@torch.no_grad()
def test_a_step_never_waits_for_the_device(attention: str) -> None:
    model, ids = make(attention=ATTENTIONS[attention]), tokens(2, 30).cuda()
    cache = DynamicCache(config=model.config)
    model(ids[:, :10], past_key_values=cache)
    model(ids[:, 10:11], past_key_values=cache)  # kernels are built
    torch.cuda.set_sync_debug_mode("error")
    got = [model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(11, 30)]
    torch.cuda.set_sync_debug_mode("default")
    assert_close(torch.cat(got, 1), model(ids, use_cache=False).logits[:, 11:], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_training_never_waits_for_the_device(dtype: torch.dtype, attention: str) -> None:
    """Cross attention, whose states are turned by the padding of each row, waited a hundred times a step."""
    model = small_model(
        CosformerForConditionalGeneration, attention=ATTENTIONS[attention], is_encoder_decoder=True,
        decoder_start_token_id=3, **SIZES,
    ).to("cuda", dtype).train()  # fmt: skip
    (ids, mask), (labels, _) = (
        [x.cuda() for x in padded([tokens(n, seed=n) for n in sizes], "left")] for sizes in ((9, 40), (70, 20))
    )
    for mode in ("default", "error"):  # once, so that kernels are built
        torch.cuda.set_sync_debug_mode(mode)
        model(ids, mask, labels=labels).loss.backward()


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
@torch.no_grad()
def test_a_captured_step_goes_on(attention: str) -> None:
    model, ids = make(attention=ATTENTIONS[attention]), tokens(2, 40).cuda()
    cache = StaticCache(config=model.config, max_cache_len=64)
    token = ids[:, :1].clone()
    model(ids[:, :10], past_key_values=cache)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(token.copy_(ids[:, 10:11]), past_key_values=cache)  # warm
    torch.cuda.current_stream().wait_stream(stream)
    graph, got = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):  # records, and computes nothing
        logits: Tensor = model(token, past_key_values=cache).logits
    for t in range(11, 40):
        token.copy_(ids[:, t : t + 1])
        graph.replay()
        got.append(logits.clone())
    assert_close(torch.cat(got, 1), model(ids, use_cache=False).logits[:, 11:], rtol=1e-3, atol=1e-3)
    assert cache.get_seq_length() == 40


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
def test_generate_compiles_its_step(attention: str) -> None:
    model = make(attention=ATTENTIONS[attention])
    ids, mask = (x.cuda() for x in padded([tokens(n, seed=n) for n in (9, 14)], "left"))
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    got = model.generate(ids, cache_implementation="static", **options)
    assert torch.equal(got, model.generate(ids, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_trains_and_writes(dtype: torch.dtype) -> None:
    model, ids = make(initializer_range=0.02).to(dtype).train(), tokens(4, 64).cuda()
    loss = model(ids, labels=ids).loss
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert model.eval().generate(ids, max_new_tokens=5, do_sample=False).shape == (4, 69)


@torch.no_grad()
def test_encoder_decoder() -> None:
    model = small_model(
        CosformerForConditionalGeneration, is_encoder_decoder=True, decoder_start_token_id=3, **SIZES
    ).cuda()
    ids, mask = padded([tokens(n, seed=n) for n in (5, 14)], "left")
    options: dict[str, Any] = {"max_new_tokens": 12, "do_sample": False}
    got = model.generate(ids.cuda(), attention_mask=mask.cuda(), **options).cpu()
    assert torch.equal(got, model.cpu().generate(ids, attention_mask=mask, **options))


def test_packed_and_padded_batches() -> None:
    model = make(attention=["cosformer", "softmax"])
    rows = [tokens(n, seed=n) for n in (5, 31, 17)]
    cu = torch.tensor([0, 5, 36, 53], dtype=torch.int32, device="cuda")
    packed = model(torch.cat(rows)[None].cuda(), cu_seqlens=cu).logits[0]
    want = torch.cat([model(row[None].cuda()).logits[0] for row in rows])
    assert_close(packed, want, rtol=1e-3, atol=1e-3)
