"""Each rival against a published package, on the same weights and inputs. What differs on purpose is set aside.

docs/rivals.md names the packages. They are in the extra `rivals-test`; flash-linear-attention, in the extra `bench`.
"""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rival_checks import gap
from small_models import small_model, swapped, tokens
from torch import Tensor

from cosformer.models import CosformerForMaskedLM
from cosformer.rivals import linear_attention, linformer_attention, performer_attention, reformer_attention
from cosformer.rivals.bigbird import gathered_blocks, seen_blocks
from cosformer.rivals.drawn_features import orthogonal
from cosformer.rivals.gated import gated_attention
from cosformer.rivals.performer import performer_features


def published(name: str, extra: str = "rivals-test") -> Any:
    """The module of a package, or a skip; its own warnings at import are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name, reason=f"{name} is not installed: pip install -e '.[{extra}]'")


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


class TestPerformer:
    """performer-pytorch. The floor of 1e-4 is left out: it is added after a shift by the largest exponent, for which
    the package takes w·x alone and ours w·x − ‖x‖²/2."""

    def test_features(self) -> None:
        theirs = published("performer_pytorch.performer_pytorch").softmax_kernel
        q, k, w = normal(2, 3, 50, 16), normal(2, 3, 50, 16), orthogonal(torch.Generator(), 40, 16).double()
        phi_q, phi_k = performer_features(q, k, w, whole=True, floor=0)
        assert phi_k is not None
        for ours, x, is_query in ((phi_q, q, True), (phi_k, k, False)):
            ratio = ours / theirs(x, projection_matrix=w, is_query=is_query, eps=0)
            constant = ratio.amax(-1, keepdim=True) if is_query else ratio.amax((-2, -1), keepdim=True)
            assert gap(ratio / constant, torch.ones_like(ratio)) < 1e-12  # the shift, which cancels in attention

    @pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
    def test_attention(self, causal: bool) -> None:
        theirs = published("performer_pytorch.performer_pytorch")
        q, k, v = normal(2, 3, 50, 16), normal(2, 3, 50, 16), normal(2, 3, 50, 7)
        w = orthogonal(torch.Generator(), 40, 16).double()
        phi_q, phi_k = (
            theirs.softmax_kernel(x, projection_matrix=w, is_query=of_q, eps=0) for x, of_q in ((q, True), (k, False))
        )
        if causal:
            exact = theirs.causal_linear_attention_noncuda(phi_q, phi_k, v, chunk_size=8, eps=0)
        else:
            exact = theirs.linear_attention(phi_q, phi_k, v)
        assert gap(performer_attention(q, k, v, w, causal=causal, floor=0), exact) < 1e-12

    def test_whole_attention_with_the_floor_where_it_hardly_counts(self) -> None:
        """Inputs so short that ‖x‖²/2 is nothing: then both floors weigh the same."""
        module = published("performer_pytorch").FastAttention(dim_heads=16, nb_features=40).double()
        q, k, v = normal(2, 3, 50, 16) * 1e-5, normal(2, 3, 50, 16) * 1e-5, normal(2, 3, 50, 16)
        assert gap(performer_attention(q, k, v, module.projection_matrix), module(q, k, v)) < 1e-9

    def test_directions_are_as_long_and_as_orthogonal(self) -> None:
        """Not equal: the package leaves QR's signs, which prefer a side (tests/rivals/test_performer.py)."""
        theirs = published("performer_pytorch.performer_pytorch").gaussian_orthogonal_random_matrix
        ours = orthogonal(torch.Generator().manual_seed(1), 3_200, 16)
        lengths = [w.norm(dim=1) for w in (ours, theirs(3_200, 16))]
        assert abs(lengths[0].mean() - lengths[1].mean()) < 5 * (0.5 / 3_200) ** 0.5 * 2**0.5  # deviation of χ₁₆: 0.7
        for w in (ours, theirs(32, 16)):
            unit = F.normalize(w[:16], dim=1)
            assert gap(unit @ unit.mT, torch.eye(16)) < 1e-5


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
def test_linear_transformer(causal: bool) -> None:
    """performer-pytorch's generalised attention with φ = elu + 1 and no projection is the Linear Transformer."""
    theirs = published("performer_pytorch.performer_pytorch")
    q, k, v = normal(2, 3, 50, 16), normal(2, 3, 50, 16), normal(2, 3, 50, 7)
    phi_q, phi_k = (
        theirs.generalized_kernel(
            x, projection_matrix=None, kernel_fn=lambda y: F.elu(y) + 1, kernel_epsilon=0, normalize_data=False
        )
        for x in (q, k)
    )
    exact = (
        theirs.causal_linear_attention_noncuda(phi_q, phi_k, v, chunk_size=8, eps=0)
        if causal
        else theirs.linear_attention(phi_q, phi_k, v)
    )
    assert gap(linear_attention(q, k, v, causal=causal), exact) < 1e-12


class TestLinformer:
    """linformer: all of it, shorter sequences too."""

    @pytest.mark.parametrize("length", [40, 96])
    def test_attention(self, length: int) -> None:
        module = published("linformer").LinformerSelfAttention(32, 96, k=8, heads=4).double()
        x = normal(2, length, 32)
        q, k, v = (f(x).unflatten(2, (4, 8)).transpose(1, 2) for f in (module.to_q, module.to_k, module.to_v))
        o = linformer_attention(q, k, v, module.proj_k.mT, module.proj_v.mT)
        assert gap(module.to_out(o.transpose(1, 2).flatten(2)), module(x)) < 1e-13

    def test_a_block_of_a_model(self) -> None:
        module = published("linformer").LinformerSelfAttention(32, 96, k=8, heads=4, one_kv_head=False).double()
        model = small_model(
            CosformerForMaskedLM, attention="linformer", causal=False, attention_options={"rank": 8},
            num_key_value_heads=4, attention_bias=False,
        ).double()  # fmt: skip
        attention = model.model.layers[0].self_attn
        with torch.no_grad():
            for ours, theirs in (("q_proj", "to_q"), ("k_proj", "to_k"), ("v_proj", "to_v"), ("o_proj", "to_out")):
                getattr(module, theirs).weight.copy_(getattr(attention, ours).weight)
            module.to_out.bias.zero_()
            module.proj_k.copy_(attention.kind.mix_k.mT)
            module.proj_v.copy_(attention.kind.mix_v.mT)
            found: list[Tensor] = []
            attention.register_forward_hook(lambda _, given, out: found.extend([given[0], out]))
            model(tokens(2, 60))
            assert gap(module(found[0]), found[1]) < 1e-12


@pytest.mark.parametrize("causal", [False, True], ids=["both-ways", "causal"])
@pytest.mark.parametrize("rounds", [1, 3])
def test_reformer(causal: bool, rounds: int) -> None:
    """reformer-pytorch with the settings of the paper (same bucket only, a pair counts once), which are not its own
    defaults. Its look back goes round from the first chunk to the last of another round: never the same bucket."""
    module = published("reformer_pytorch.reformer_pytorch").LSHAttention(
        bucket_size=8, n_hashes=rounds, causal=causal, allow_duplicate_attention=False, attend_across_buckets=False
    )
    x, v = normal(3, 1, 64, 16), normal(3, 1, 64, 16)
    torch.manual_seed(5)
    exact = module(x[:, 0], v[:, 0])[0]
    torch.manual_seed(5)
    drawn = torch.randn(1, 16, rounds, 4, dtype=torch.float64)  # as the package draws: 64/8 buckets, in halves
    got = reformer_attention(x, v, drawn.permute(0, 2, 1, 3), causal=causal, chunk=8)
    assert gap(got[:, 0], exact) < 1e-7  # the package adds 1e-9 to counts


@pytest.mark.parametrize("real", [96, 91], ids=["whole", "padded"])
def test_bigbird(real: int) -> None:
    """transformers' BigBird with the random blocks it drew. Ours differ in who draws, and in that the last *real* block
    is the global one; so padding ends inside the last block here."""
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    config = BigBirdConfig(
        hidden_size=32, num_attention_heads=4, block_size=8, num_random_blocks=2, max_position_embeddings=96
    )
    module, x = (
        BigBirdBlockSparseAttention(config, seed=3).double().train(),
        normal(2, 96, 32),
    )  # draws in training only
    mask = (torch.arange(96) < real).double().expand(2, -1)
    band = BigBirdModel.create_masks_for_block_sparse_attn(mask, 8)
    drawn: list[Any] = []
    plain = module._bigbird_block_rand_mask_with_head

    def watched(*args: Any, **kwargs: Any) -> Any:
        drawn.append(plain(*args, **kwargs))
        return drawn[-1]

    with swapped(module, "_bigbird_block_rand_mask_with_head", watched), torch.no_grad():
        # blocked mask, band mask, and masks of queries and of keys
        exact = module(x, band[1], band[2], band[3], band[0], band[0])[0]
    seen = seen_blocks(torch.tensor([96]), 12, 4, block=8, random=0, seed=0).repeat(2, 1, 1, 1)
    assert len(drawn) == 1
    for head, rows in enumerate(drawn[0]):
        for i, blocks in enumerate(rows):
            assert not seen[:, head, i + 1, blocks.tolist()].any()  # random ones are others
            seen[:, head, i + 1, blocks.tolist()] = True
    q, k, v = (f(x).unflatten(2, (4, 8)).transpose(1, 2) for f in (module.query, module.key, module.value))
    got = gathered_blocks(q, k, v, seen, torch.tensor([real, real]), block=8, most=7).transpose(1, 2).flatten(2)
    assert gap(got[:, :real], exact[:, :real]) < 1e-12


def test_gated_rfa() -> None:
    """flash-linear-attention's scalar-gated linear attention, with keys times 1 − g, and once more for v = 1."""
    theirs = published("fla.ops.simple_gla.naive", "bench").naive_recurrent_simple_gla
    q, k, v = torch.rand(2, 70, 3, 12), torch.rand(2, 70, 3, 12), torch.randn(2, 70, 3, 5)
    opening = torch.randn(2, 70, 3)
    shared = k * torch.sigmoid(-opening)[..., None]
    sums, norm = (theirs(q, shared, x, F.logsigmoid(opening), scale=1.0)[0] for x in (v, torch.ones_like(v[..., :1])))
    heads = [x.transpose(1, 2) for x in (q, k, v, opening)]
    assert gap(gated_attention(*heads)[0].transpose(1, 2), sums / norm) < 1e-5  # the package computes in float32


def test_linear_transformer_of_another_package() -> None:
    theirs = published("fla.ops.linear_attn.naive", "bench").naive_recurrent_linear_attn
    q, k, v = torch.randn(2, 70, 3, 12), torch.randn(2, 70, 3, 12), torch.randn(2, 70, 3, 5)
    exact, _ = theirs(F.elu(q) + 1, F.elu(k) + 1, v, normalize=True)
    got = linear_attention(*(x.transpose(1, 2) for x in (q, k, v)), causal=True)
    assert gap(got.transpose(1, 2), exact) < 1e-5


def test_a_package_that_is_absent_is_a_skip_with_the_fix() -> None:
    with pytest.raises(pytest.skip.Exception, match="rivals-test"):
        published("no_such_package")
