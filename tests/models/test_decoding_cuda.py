"""GraphDecoder on a GPU: a captured step writes what the eager loop writes, and nothing in it waits for the device."""

from typing import Any

import pytest
import torch
from small_models import ATTENTIONS, padded, small_model, tokens

from cosformer.models import CosformerForCausalLM, GraphDecoder, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("default"),
]
SIZES: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}  # heads of 32


@pytest.fixture(autouse=True)
def _exact_products() -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
    torch.cuda.set_sync_debug_mode("default")


def make(attention: str, **options: Any) -> Any:
    return small_model(CosformerForCausalLM, attention=ATTENTIONS[attention], **SIZES | options).cuda()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_captured_it_writes_what_generate_writes(attention: str, positions: str) -> None:
    model = make(attention, positions=positions)
    one = GraphDecoder(model, batch=3, max_length=60)
    for lengths in ((3, 9, 17), (6, 6, 6), (11, 1, 2)):
        ids, mask = (x.cuda() for x in padded([tokens(n, seed=n) for n in lengths], "left"))
        want = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
        assert torch.equal(one.generate(ids, 12, attention_mask=mask), want)
    assert one.cache.get_seq_length() == 22  # the last token is not read


@pytest.mark.parametrize("attention", ["cosformer", "hybrid"])
def test_steps_do_not_wait(attention: str) -> None:
    one = GraphDecoder(make(attention), max_length=60)
    one.prefill(tokens(1, 9).cuda())
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(20):
        one.step()
    torch.cuda.set_sync_debug_mode("default")
    assert one.length == one.cache.get_seq_length() == 29


def test_sampling_draws_anew_in_every_replay_and_repeats_with_its_seed() -> None:
    model, ids = make("cosformer"), tokens(4, 6).cuda()
    one = GraphDecoder(model, batch=4, sampling=Sampling(temperature=2.0, top_k=40, top_p=0.95), seed=3)
    one.seed(3)
    first = one.generate(ids, 30)
    other = one.generate(ids, 30)
    one.seed(3)
    assert torch.equal(one.generate(ids, 30), first)
    assert not torch.equal(other, first)
    assert len(first[:, 6:].unique()) > 10


def test_half_precision() -> None:
    model = make("cosformer", initializer_range=0.02).to(torch.bfloat16)
    got = GraphDecoder(model, batch=2).generate(tokens(2, 6).cuda(), 30)
    assert got.shape == (2, 36)


def test_a_pretended_context_costs_the_same_bytes() -> None:
    one = GraphDecoder(make("cosformer", horizon=200_000))
    held = []
    for context in (1_000, 100_000):
        one.pretend(context)
        one.step()
        held.append(one.cache_bytes)
        assert one.logits.isfinite().all()
    assert held[0] == held[1]
