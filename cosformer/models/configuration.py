"""Everything that makes one model differ from another. Checked at birth: a wrong field says what, why and the fix."""

import copy
import difflib
from typing import Any, Literal, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from cosformer.models.configuration_checks import check_config
from cosformer.models.kinds import KINDS


@strict
class CosformerConfig(PreTrainedConfig):
    """A decoder (causal=True), an encoder (causal=False) or both (is_encoder_decoder=True), of the same blocks.

    Presets: `paper_lm()`, `paper_roberta()`, `modern()`; each takes any field by name.
    """

    model_type = "cosformer"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012  (as transformers declares it)
    attribute_map = {"max_position_embeddings": "horizon"}  # noqa: RUF012

    vocab_size: int = 50_257
    hidden_size: int = 512
    num_hidden_layers: int = 8
    """Blocks; in an encoder–decoder, of each of the two."""
    num_attention_heads: int = 8
    num_key_value_heads: int | None = None
    """Key/value heads, a divisor of num_attention_heads; None: as many."""
    head_dim: int | None = None
    """Width of a head; None: hidden_size / num_attention_heads."""
    intermediate_size: int | None = None
    """Inner width of the MLP; None: 4·hidden_size, or 8/3 of it up to a multiple of 64 for swiglu."""

    attention: str | list[str] = "cosformer"
    """A name from the registry (models.KINDS, cosformer.rivals) for all blocks, or a list with one for each."""
    attention_options: dict[str, Any] | None = None
    """Choices of the kinds themselves, such as {"features": 128}; cosformer and softmax have none. None: defaults."""
    causal: bool = True
    """Whether a token sees only what came before it. Ignored in an encoder–decoder, which has one stack of each."""
    horizon: int = 4096
    """M: the longest sequence, for ever. Weights fade as cos(π·distance/(2M)); also the rows of learned positions."""
    feature_map: str = "relu"
    """φ of cosFormer blocks: relu, identity, leaky_relu, elu1, silu."""
    normalizer: str = "sum"
    """Of cosFormer blocks. sum: weights are divided by their sum. norm: instead, an RMSNorm of each head's output."""
    positions: str = "sinusoidal"
    """none; sinusoidal or learned, added to the embeddings; rotary, turning q and k (before φ)."""
    learned_positions: int = 0
    """Rows of learned positions where position_ids pass over some; 0: as many as the horizon."""
    rotary_base: float | int = 10_000.0
    norm: str = "rmsnorm"
    """rmsnorm or layernorm."""
    norm_first: bool = True
    """Norms before attention and MLP and at the end (pre-norm); False: after each sum (post-norm, as BERT)."""
    norm_eps: float | int = 1e-6
    mlp: str = "gelu"
    """gelu, gelu_tanh (GPT-2's), relu, silu, or swiglu (gated)."""
    attention_bias: bool = True
    mlp_bias: bool = True
    embedding_norm: bool = False
    """A norm right after the embeddings, as BERT."""
    scale_embeddings: bool = False
    """Multiply token embeddings by √hidden_size."""
    residual_in_fp32: bool = True
    """Under autocast to bf16, what goes from block to block (pre-norm) stays fp32; False: it is bf16, and norms alone
    are computed in fp32. Faster where a GPU waits for its memory."""
    type_vocab_size: int = 0
    """Kinds of token_type_ids; 0: there are none."""

    hidden_dropout: float | int = 0.0
    """After the embeddings, each attention and each MLP."""
    attention_dropout: float | int = 0.0
    """On the attended values: cosFormer has no weights to drop, and softmax blocks follow, so that they compare."""
    classifier_dropout: float | int = 0.0
    label_smoothing: float | int = 0.0
    """In training only: evaluation reports the plain loss."""
    loss: str = "softmax"
    """Of causal language models, in training: softmax, or one_vs_each, a bound that large vocabularies can sample."""
    loss_samples: int = 0
    """Of one_vs_each: words drawn for each batch that stand for the whole vocabulary; 0: all words."""
    pooling: str = "mean"
    """How classifiers sum up a sequence: mean, first or last of its tokens that are not padding."""
    classifier_hidden_size: int = 0
    """Of classifiers of sequences: width of a layer with ReLU between that and the score; 0: there is none (of pairs:
    one of hidden_size, with GELU)."""

    tie_word_embeddings: bool = True
    """Output and input embeddings are one matrix (in an encoder–decoder, both inputs too)."""
    initializer_range: float | int = 0.02
    use_cache: bool = True
    """Outside of training, return a cache to continue from."""
    add_cross_attention: bool = False
    """Set by the encoder–decoder for its decoder."""
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        self._refuse_misspelt(kwargs)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.num_attention_heads > 0:
            self.head_dim = self.hidden_size // self.num_attention_heads
            if self.head_dim * self.num_attention_heads != self.hidden_size:
                raise ValueError(
                    f"hidden_size={self.hidden_size} with num_attention_heads={self.num_attention_heads}: the heads "
                    "share the width equally; choose a multiple, or set head_dim"
                )
        if self.intermediate_size is None:
            gated = self.mlp == "swiglu"
            self.intermediate_size = -(-8 * self.hidden_size // 192) * 64 if gated else 4 * self.hidden_size
        check_config(self)
        super().__post_init__(**kwargs)

    @property
    def attentions(self) -> list[str]:
        """The kind of each block."""
        return [self.attention] * self.num_hidden_layers if isinstance(self.attention, str) else list(self.attention)

    @property
    def layer_types(self) -> list[str]:
        """What the cache holds for each block, in the words of transformers."""
        return [KINDS[name].layer_type for name in self.attentions]

    @property
    def has_longest(self) -> bool:
        """Whether `horizon` bounds the length: softmax blocks without learned positions have no bound."""
        return self.positions == "learned" or any(KINDS[name].needs_horizon for name in self.attentions)

    def stack(self, which: Literal["encoder", "decoder"]) -> Self:
        """The config of one of the two stacks of an encoder–decoder."""
        one = copy.deepcopy(self)
        one.is_encoder_decoder = False
        one.causal = one.add_cross_attention = which == "decoder"
        return one

    def validate_layer_type(self) -> None:
        """Replaces transformers' closed list of layer types; check_config has looked at ours."""

    @classmethod
    def paper_lm(cls, **overrides: Any) -> Self:
        """The causal language model of the paper's WikiText-103 experiment, 512 tokens, about 44M parameters."""
        paper = {
            "horizon": 512, "feature_map": "relu", "normalizer": "sum",
            # of fairseq's transformer_lm, on which the published code builds
            "hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8, "intermediate_size": 2048,
            "positions": "sinusoidal", "scale_embeddings": True, "norm": "layernorm", "norm_eps": 1e-5,
            "hidden_dropout": 0.1,
            # ours: GELU, and GPT-2's vocabulary with four specials
            "mlp": "gelu", "vocab_size": 50_265,
        }  # fmt: skip
        return cls(**paper | overrides)

    @classmethod
    def paper_roberta(cls, **overrides: Any) -> Self:
        """The bidirectional encoder of the paper's pre-training experiment: RoBERTa base, attention replaced."""
        paper = {
            "causal": False, "horizon": 512, "feature_map": "relu", "normalizer": "sum",
            "vocab_size": 50_265, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "positions": "learned", "norm": "layernorm", "norm_first": False,
            "norm_eps": 1e-5, "embedding_norm": True, "mlp": "gelu", "hidden_dropout": 0.1, "attention_dropout": 0.1,
            "classifier_dropout": 0.1, "pooling": "first", "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
        }  # fmt: skip
        return cls(**paper | overrides)

    @classmethod
    def modern(cls, **overrides: Any) -> Self:
        """RMSNorm, SwiGLU, rotary positions, no biases, and a norm in place of the denominator (as cosFormer2)."""
        modern = {
            "norm": "rmsnorm", "mlp": "swiglu", "positions": "rotary", "attention_bias": False, "mlp_bias": False,
            "normalizer": "norm",
        }  # fmt: skip
        return cls(**modern | overrides)

    def _refuse_misspelt(self, unknown: dict[str, Any]) -> None:
        """transformers keeps any extra field; one that nearly has the name of ours would be lost in silence."""
        known = list(CosformerConfig.__annotations__)
        for name in unknown:
            if name not in ("num_labels", "torch_dtype") and (near := difflib.get_close_matches(name, known, 1, 0.85)):
                raise ValueError(f"CosformerConfig has no field {name!r}: did you mean {near[0]!r}?")
