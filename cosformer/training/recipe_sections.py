"""The sections of a recipe. Each is checked at birth."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from cosformer.training.recipe_fields import BadRecipe, checked, pick


@dataclass(frozen=True, kw_only=True, slots=True)
class DataRecipe:
    source: str = "text"
    """A named source (stdlib, enwik8, …); `text` or `examples` for files of your own; `hub` for a data set by name."""
    path: tuple[str, ...] = ()
    """Where the files are (--data); for `hub` the name of the data set."""
    valid_path: tuple[str, ...] = ()
    """Files to validate on (--valid-data); none: held out from `path`."""
    test_path: tuple[str, ...] = ()
    length: int = 512
    """Tokens of a sequence: context of a language model, longest text of the others."""
    target_length: int = 0
    """Longest target of sequence to sequence; 0: as `length`."""
    valid_split: str = "valid"
    """The split that periodic evaluation reads."""
    document: Literal["file", "line", "paragraph"] = "file"
    """Of text files: what is one document."""
    column: str = "text"
    """Of tables: the column of a language model's text."""
    columns: tuple[str, ...] = ("text",)
    """Of tables of examples: one or two columns of text; a source and its target."""
    label: str = "label"
    """Of tables of examples: the column of the class."""
    classes: tuple[str, ...] = ()
    """Names of the classes; none: those that are in the training data."""
    config: str = ""
    """Of a hub data set: which of its configurations."""
    revision: str = ""
    """Of a hub data set: pin it, or a change is not noticed."""
    languages: tuple[str, ...] = ("de", "en")
    """Of multi30k: from, to."""
    apart: bool = False
    """Of pairs: two documents read one by one (two towers), not joined."""
    pack: bool = False
    """Of causal language models: rows of whole documents that do not see each other; else the text streams through."""
    mask_share: float = 0.15
    """Of masked language models: how many tokens are to be guessed."""
    skip_black: bool = False
    """Of pictures: only lit pixels are tokens, and position_ids tell where they are. For attention that does not count
    places itself the same as masking the black ones, as customary; what does (cosFormer's distance, patterns, mixtures
    of places) counts lit pixels. `length` then bounds these."""
    fill: bool = False
    """Of classifiers: pad every text to `length`, so that all batches have one shape; else to the longest beside it."""
    sizes: tuple[int, ...] = ()
    """Of data that is made (lra-listops, lra-pathfinder): examples of train, valid and test; none: as customary."""
    seed: int = 0
    """Of data that is made: another seed makes other examples. It is not that of the run."""

    def __post_init__(self) -> None:
        if self.length < 2:
            raise BadRecipe(f"data.length={self.length}: a sequence has at least 2 tokens")
        if self.target_length < 0:
            raise BadRecipe(f"data.target_length={self.target_length}: 0 for the same as data.length")
        if not 0 < self.mask_share < 1:
            raise BadRecipe(f"data.mask_share={self.mask_share}: a share between 0 and 1")
        if len(self.sizes) not in (0, 3) or any(size < 1 for size in self.sizes):
            raise BadRecipe(f"data.sizes={list(self.sizes)}: three counts, for train, valid and test")
        if self.seed < 0:
            raise BadRecipe(f"data.seed={self.seed}: a whole number from 0 on")
        if len(self.languages) != 2:
            raise BadRecipe(f"data.languages={list(self.languages)}: two, from and to")
        if len(self.columns) not in (1, 2):
            raise BadRecipe(f"data.columns={list(self.columns)}: one column of text, or two")


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizerRecipe:
    kind: Literal["bytes", "bpe", "word", "path", "task"] = "bytes"
    """bytes; bpe: learned from the training text; word: its words; path: a folder that AutoTokenizer loads; task: the
    tokens a task is defined on (pixels, operators), which its source brings."""
    vocab_size: int = 8192
    """Tokens of bpe, specials among them; the most of word (0: every word)."""
    path: str = ""

    def __post_init__(self) -> None:
        if (self.kind == "path") != bool(self.path):
            raise BadRecipe(
                f"tokenizer.kind={self.kind!r} with tokenizer.path={self.path!r}: a path goes with kind path, no other"
            )
        if self.vocab_size < 0 or (self.kind == "bpe" and self.vocab_size < 260):
            raise BadRecipe(f"tokenizer.vocab_size={self.vocab_size}: specials and 256 bytes come first; ask for more")
        if self.kind == "word" and 0 < self.vocab_size < 4:
            raise BadRecipe(f"tokenizer.vocab_size={self.vocab_size}: 3 specials come first; ask for more, 0 for all")


RESERVED = {
    "vocab_size": "it follows from the tokenizer",
    "causal": "it follows from the task",
    "is_encoder_decoder": "it follows from the task",
    "add_cross_attention": "it follows from the task",
    "use_cache": "training has no cache",
    "pad_token_id": "it follows from the tokenizer",
    "bos_token_id": "it follows from the tokenizer",
    "eos_token_id": "it follows from the tokenizer",
    "decoder_start_token_id": "it follows from the tokenizer",
    "type_vocab_size": "no data here has types of tokens",
}


@cache
def model_fields() -> Mapping[str, Any]:
    """The fields of CosformerConfig that a recipe may choose, with their types."""
    from cosformer.models.configuration import CosformerConfig

    return {name: kind for name, kind in CosformerConfig.__annotations__.items() if name not in RESERVED}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRecipe:
    init: str = ""
    """A folder with a model to start from: a run, or any checkpoint of ours. Shape and tokenizer are then its own."""
    config: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Fields of CosformerConfig. `horizon` left out: as long as the data."""

    @classmethod
    def read(cls, table: Mapping[str, Any]) -> "ModelRecipe":
        if not isinstance(table, Mapping):
            raise BadRecipe(f"model is a section with fields of its own, got {table!r}")
        hints = {"init": str, **model_fields()}
        for name in table:
            if name in RESERVED:
                raise BadRecipe(f"model.{name} is not for a recipe: {RESERVED[name]}; leave it out")
        values = {name: checked(value, hints[name], f"model.{name}") for name, value in pick(table, hints, "model")}
        return cls(init=values.pop("init", ""), config=MappingProxyType(values))

    def table(self) -> dict[str, Any]:
        return {"init": self.init, **{k: v for k, v in self.config.items() if v is not None}}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRecipe:
    steps: int = 0
    """Optimizer steps; 0: by `epochs`."""
    epochs: float = 0.0
    """Passes over the training data, where `steps` is 0."""
    batch: int = 16
    """Sequences of one step, over all processes."""
    micro_batch: int = 0
    """Sequences a process takes at once; gradients are summed over the rest. 0: all of its share."""
    learning_rate: float = 1e-3
    schedule: Literal["cosine", "linear", "constant", "onecycle", "inverse_sqrt"] = "cosine"
    warmup_steps: int = 0
    """Steps of linear warm-up; 0 starts at the peak rate."""
    final_share: float = 0.0
    """The last rate as a share of the peak, of cosine and linear."""
    weight_decay: float = 0.1
    """Of matrices; never of norms and biases."""
    beta1: float = 0.9
    beta2: float = 0.98
    eps: float = 1e-8
    clip: float = 1.0
    """Largest norm of the gradient; 0: not clipped."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 by autocast on CUDA, fp32 elsewhere. Weights and optimizer are fp32."""
    compile: Literal["auto", "on", "off", "graphs"] = "auto"
    """torch.compile; auto: on CUDA. graphs: replayed as CUDA graphs, for small models with batches of one shape."""
    gradient_checkpointing: bool = False
    fsdp: bool = False
    """Shard weights and optimizer over processes (FSDP2)."""
    workers: int = -1
    """Processes that read data; -1: 2 on CUDA, none elsewhere."""
    log_every: int = 10
    save_every: int = 500
    """Steps between checkpoints; one is written at the end too."""
    keep: int = 2
    """Checkpoints kept, the newest."""

    def __post_init__(self) -> None:
        if (self.steps > 0) == (self.epochs > 0) or self.steps < 0 or self.epochs < 0:
            raise BadRecipe(
                f"train.steps={self.steps}, train.epochs={self.epochs}: give one of the two, and 0 for the other"
            )
        for name in ("batch", "log_every", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise BadRecipe(f"train.{name}={getattr(self, name)}: at least 1")
        for name in ("micro_batch", "warmup_steps", "final_share", "weight_decay", "clip"):
            if getattr(self, name) < 0:
                raise BadRecipe(f"train.{name}={getattr(self, name)}: 0 for none")
        if not 0 < self.learning_rate < math.inf:
            raise BadRecipe(f"train.learning_rate={self.learning_rate}: a positive number")
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0):
            raise BadRecipe(f"train.beta1={self.beta1}, beta2={self.beta2}, eps={self.eps}: 0 ≤ β < 1 and eps > 0")
        if self.workers < -1:
            raise BadRecipe(f"train.workers={self.workers}: -1 to choose, 0 for none")
        if self.schedule == "inverse_sqrt" and not self.warmup_steps:
            raise BadRecipe("train.schedule='inverse_sqrt' needs train.warmup_steps: the rate falls as √(warmup/step)")


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRecipe:
    every: int = 250
    """Steps between evaluations; one is made at the end too."""
    batches: int = 50
    """Batches of a periodic evaluation, spread over the split; 0: all."""
    batch: int = 0
    """Sequences of a batch; 0: as in training."""
    keep: Literal["best", "last"] = "best"
    """Which weights the run ends with: of the best evaluation, or of the last step."""

    def __post_init__(self) -> None:
        if self.every < 1 or self.batches < 0 or self.batch < 0:
            raise BadRecipe(
                f"eval.every={self.every}, batches={self.batches}, batch={self.batch}: every ≥ 1, others ≥ 0"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleRecipe:
    prompts: tuple[str, ...] = ()
    """Of language models: texts to go on from at each evaluation; of translation, texts to translate."""
    tokens: int = 100
    temperature: float = 0.8
    top_p: float = 0.95

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise BadRecipe(
                f"sample.tokens={self.tokens}, temperature={self.temperature}, top_p={self.top_p}: at least 1, at "
                "least 0, above 0 and at most 1"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainRecipe:
    """Of --pretrain: masked tokens of the same training inputs are guessed first, by the same model."""

    steps: int = 0
    """Optimizer steps; 0: the recipe has no pre-training."""
    batch: int = 0
    """Sequences of a step; 0: as in training."""
    learning_rate: float = 0.0
    """0: as in training."""
    warmup_steps: int = 0
    """0: as in training."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "learning_rate", "warmup_steps"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadRecipe(f"pretrain.{name}={getattr(self, name)}: 0 or more")


SECTIONS = {
    "data": DataRecipe, "tokenizer": TokenizerRecipe, "model": ModelRecipe, "train": TrainRecipe, "eval": EvalRecipe,
    "sample": SampleRecipe, "pretrain": PretrainRecipe,
}  # fmt: skip
