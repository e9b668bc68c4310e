"""From a softmax checkpoint to a cosFormer model: every weight that has a place is copied, the rest accounted for."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoTokenizer

from cosformer.models.checkpoints import explain
from cosformer.models.classifiers import CosformerForSequenceClassification, CosformerForTokenClassification
from cosformer.models.configuration import CosformerConfig
from cosformer.models.conversion_families import FAMILIES, Family, Part, window_of
from cosformer.models.folders import whole_folder
from cosformer.models.language_models import CosformerForCausalLM, CosformerForMaskedLM
from cosformer.models.model import CosformerModel, CosformerPreTrainedModel
from cosformer.version import __version__

REPORT = "conversion.json"
HEADS: dict[str, type[CosformerPreTrainedModel]] = {
    "ForMaskedLM": CosformerForMaskedLM, "ForPreTraining": CosformerForMaskedLM, "LMHeadModel": CosformerForCausalLM,
    "DoubleHeadsModel": CosformerForCausalLM, "ForCausalLM": CosformerForCausalLM,
    "ForSequenceClassification": CosformerForSequenceClassification,
    "ForTokenClassification": CosformerForTokenClassification,
}  # fmt: skip
TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "chat_template*",
)


@dataclass(kw_only=True, slots=True)
class Report:
    """What became of every tensor on either side."""

    source: str
    source_type: str
    source_class: str
    target_class: str
    horizon: int
    attention: list[str]
    copied: list[dict[str, Any]] = field(default_factory=list)
    """target, source, shape (of the target), note."""
    not_copied: list[dict[str, Any]] = field(default_factory=list)
    """source, shape, reason."""
    new: list[dict[str, Any]] = field(default_factory=list)
    """target, shape, how it begins, reason."""
    tokenizer: str = ""
    notes: list[str] = field(default_factory=list)
    cosformer: str = __version__


def convert(
    source: Path | str, target: Path | str, *, attention: str | list[str] = "cosformer", horizon: int | None = None,
    seed: int = 0, **fields: Any,
) -> Report:  # fmt: skip
    """Writes `target`: model, tokenizer and report, whole or not at all. `fields` of CosformerConfig override.

    `horizon`: None takes the source's longest sequence. `seed` is for tensors that have no source.
    """
    source = Path(source)
    with whole_folder(Path(target)) as folder:
        model, report = converted(source, attention=attention, horizon=horizon, seed=seed, **fields)
        model.save_pretrained(folder)
        report.tokenizer = _carry_tokenizer(source, folder)
        (folder / REPORT).write_text(json.dumps(asdict(report), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def converted(
    source: Path, *, attention: str | list[str] = "cosformer", horizon: int | None = None, seed: int = 0, **fields: Any
) -> tuple[CosformerPreTrainedModel, Report]:
    """The model itself, in the dtype of the source, and the report."""
    theirs = _config(source)
    family = FAMILIES[theirs.model_type]
    head = next((ours for end, ours in HEADS.items() if _class(theirs).endswith(end)), CosformerModel)
    config = _our_config(theirs, family, attention, horizon, fields)
    notes = _notes(theirs, config)
    model, unexpected, absent = _load(source, theirs)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ours = head(config).to(model.dtype).eval()
    report = Report(
        source=source.resolve().name, source_type=theirs.model_type, source_class=type(model).__name__,
        target_class=head.__name__, horizon=config.horizon, attention=config.attentions, notes=notes,
    )  # fmt: skip
    _copy(model, ours, list(_parts(model, ours, theirs, family)), absent, report, fields)
    for name in sorted(unexpected):
        report.not_copied.append({"source": name, "shape": None, "reason": f"no part of a {type(model).__name__}"})
    if isinstance(ours, CosformerForCausalLM) and getattr(model, "generation_config", None) is not None:
        ours.generation_config = model.generation_config
    return ours, report


def _config(source: Path) -> Any:
    if not source.is_dir():
        raise FileNotFoundError(
            f"{source} is not a folder: name one that holds a checkpoint (config.json and weights); a model of the hub "
            "is fetched with `hf download NAME --local-dir FOLDER`"
        )
    if not (source / "config.json").is_file():
        raise FileNotFoundError(f"{source} has no config.json: it is not a checkpoint in Hugging Face format")
    try:
        kind = json.loads((source / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{source / 'config.json'} is not a readable config ({error})") from error
    if kind == "cosformer":
        raise ValueError(f"{source} is a cosFormer model already")
    if kind not in FAMILIES:
        raise ValueError(f"{source} has model_type={kind!r}: what can be converted is {', '.join(FAMILIES)}")
    return AutoConfig.from_pretrained(source, local_files_only=True)


def _class(theirs: Any) -> str:
    return (theirs.architectures or [""])[0]


def _our_config(
    theirs: Any, family: Family, attention: str | list[str], horizon: int | None, fields: dict[str, Any]
) -> CosformerConfig:
    made: dict[str, Any] = family.fields(theirs) | {"vocab_size": theirs.vocab_size, "attention": attention}
    names = ("initializer_range", "tie_word_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
    made |= {name: getattr(theirs, name, None) for name in names}
    if "Classification" in _class(theirs):
        made |= {"id2label": theirs.id2label, "label2id": theirs.label2id, "problem_type": theirs.problem_type}
    if horizon is not None:
        made["horizon"] = horizon
    return CosformerConfig(**made | fields)


def _notes(theirs: Any, config: CosformerConfig) -> list[str]:
    """What is not a tensor and yet differs. Refuses where softmax would be kept and still not be the source's."""
    notes, window = [], window_of(theirs)
    if window is not None:
        if "softmax" in config.attentions:
            raise ValueError(
                f"this checkpoint has sliding_window={window}: its softmax sees so many tokens back and ours sees all. "
                "Convert every block (--attention cosformer), or set sliding_window to null in its config.json"
            )
        notes.append(f"the source sees {window} tokens back; cosFormer sees everything, fading to the horizon")
    if config.attention_dropout:
        notes.append(f"attention_dropout={config.attention_dropout} acts on the attended values, not on the weights")
    if getattr(theirs, "embd_pdrop", config.hidden_dropout) != config.hidden_dropout:
        notes.append(f"dropout after the embeddings is {config.hidden_dropout}, in the source {theirs.embd_pdrop}")
    if config.positions == "rotary" and "softmax" not in config.attentions:
        notes.append("rotary positions turn q and k before φ, so they are no longer purely relative")
    return notes


def _load(source: Path, theirs: Any) -> tuple[Any, set[str], set[str]]:
    """The source's model, names in its files that it has no place for, and names of its pooler that are in no file."""
    cls: Any = getattr(transformers, _class(theirs), AutoModel) if _class(theirs) else AutoModel
    if not any(source.glob("*.safetensors")) and not any(source.glob("*.bin")):
        raise FileNotFoundError(f"{source} has no weights: neither *.safetensors nor *.bin lies beside its config.json")
    try:
        model, info = cls.from_pretrained(source, dtype="auto", local_files_only=True, output_loading_info=True)
    except Exception as error:  # of many kinds, by the file that is broken
        why = None
        if any(source.glob("*.safetensors")):
            with torch.device("meta"):
                empty = cls.from_config(theirs) if cls is AutoModel else cls(theirs)
            why = explain(source, empty)
        raise RuntimeError(f"{source} does not load: {why or f'{type(error).__name__}: {error}'}") from error
    if missing := sorted(name for name in info["missing_keys"] if "pooler" not in name):
        rest = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise RuntimeError(f"{source} lacks {', '.join(missing[:8])}{rest}: its files are not those of its config.json")
    return model.eval(), set(info["unexpected_keys"]), set(info["missing_keys"])


def _parts(model: Any, ours: CosformerPreTrainedModel, theirs: Any, family: Family) -> Iterator[Part]:
    """Names in full on both sides."""
    their_prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    our_prefix = "" if isinstance(ours, CosformerModel) else "model."
    for part in family.body(theirs, ours.config.horizon):
        yield part._replace(target=our_prefix + part.target, source=their_prefix + part.source)
    if isinstance(ours, CosformerForCausalLM):
        yield Part("lm_head.weight", "lm_head.weight")
    elif isinstance(ours, CosformerForMaskedLM):
        assert family.masked is not None
        yield from family.masked()
    elif isinstance(ours, CosformerForTokenClassification):
        for end in ("weight", "bias"):
            yield Part(f"score.{end}", f"{family.token_head}.{end}")
    elif isinstance(ours, CosformerForSequenceClassification) and family.row_head is not None and ours.hidden is None:
        yield Part("score.weight", f"{family.row_head}.weight")


@torch.no_grad()
def _copy(
    model: Any, ours: CosformerPreTrainedModel, parts: list[Part], absent: set[str], report: Report,
    fields: dict[str, Any],
) -> None:  # fmt: skip
    misfit = (
        f"the fields given ({', '.join(fields)}) make a model of other tensors; leave out those that change its tensors"
        if fields
        else "the checkpoint does not fit its own config.json"
    )
    theirs = {name: value for name, value in model.state_dict().items() if name not in absent}
    mine = ours.state_dict()
    filled_at: dict[int, str] = {}
    for target, source, change, note in parts:
        value = theirs[source] if change is None else change(theirs[source])
        if target not in mine:
            raise ValueError(f"{source} would be {target}, which the new model does not have: {misfit}")
        if value.shape != mine[target].shape:
            raise ValueError(
                f"{source} is {list(theirs[source].shape)} and would be {list(value.shape)} in {target}, which is "
                f"{list(mine[target].shape)}: {misfit}"
            )
        other = filled_at.setdefault(mine[target].data_ptr(), target)
        if other != target and not torch.equal(mine[target], value):
            raise ValueError(
                f"{source} differs from what is in {other} already, and in the new model {target} is the same matrix: "
                "leave out tie_word_embeddings=True, since the source is not tied"
            )
        mine[target].copy_(value)
        report.copied.append({"target": target, "source": source, "shape": list(value.shape), "note": note})
    used, filled = {part.source for part in parts}, {part.target for part in parts}
    places = {theirs[name].data_ptr(): name for name in used}
    inside = "" if model.base_model is model else f"{model.base_model_prefix}."
    for name, value in theirs.items():
        if name in used:
            continue
        if value.data_ptr() in places:  # two names of one tensor
            same = next(part.target for part in parts if part.source == places[value.data_ptr()])
            entry = {"target": same, "source": name, "shape": list(value.shape), "note": "another name of the same"}
            report.copied.append(entry)
            continue
        if name.startswith(inside) and "pooler" not in name:
            raise ValueError(f"this checkpoint has {name}, for which a cosFormer model has no place")
        report.not_copied.append({"source": name, "shape": list(value.shape), "reason": _why_not(name, ours)})
    for name, value in mine.items():
        if name not in filled:
            report.new.append({"target": name, "shape": list(value.shape), **_beginning(name, value, filled)})


def _why_not(name: str, ours: CosformerPreTrainedModel) -> str:
    if "pooler" in name:
        return "a layer on the first token, for classification; ours classifies what config.pooling gives directly"
    if name in ("cls.predictions.bias", "lm_head.bias"):
        return "the source itself does not use it: untied, its head has a bias of its own"
    if "seq_relationship" in name:
        return "predicts whether one sentence follows another; there is no such head"
    if isinstance(ours, CosformerForSequenceClassification):
        return "a classifier of other layers than ours, which is new"
    return f"a head that {type(ours).__name__} does not have"


def _beginning(name: str, value: Tensor, filled: set[str]) -> dict[str, str]:
    how = "zeros" if not value.any() else "ones" if (value == 1).all() else "drawn at random"
    if name.endswith(".bias") and name.removesuffix("bias") + "weight" in filled:
        reason = "the source has no bias here; zero changes nothing"
    elif name.startswith(("score.", "hidden.")):
        reason = "a head to be trained"
    elif ".kind." in name:
        reason = "of the attention itself, where the source has nothing"
    else:
        reason = "the source has nothing for it"
    return {"how": how, "reason": reason}


def _carry_tokenizer(source: Path, target: Path) -> str:
    """Saves the source's tokenizer so that AutoTokenizer finds its class without the source's config; in words."""
    files = sorted({file for pattern in TOKENIZER_FILES for file in source.glob(pattern) if file.is_file()})
    if not files:
        return "none: the source has no tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        tokenizer.save_pretrained(target)
        AutoTokenizer.from_pretrained(target, local_files_only=True)
    except Exception as error:  # of many kinds, by tokenizer
        for file in files:
            (target / file.name).write_bytes(file.read_bytes())
        return f"files copied as they are: it did not load here ({type(error).__name__}: {error})"
    return f"{type(tokenizer).__name__}, {len(tokenizer):,} tokens"


def grouped(entries: list[dict[str, Any]], *names: str) -> list[tuple[dict[str, Any], int, int]]:
    """Entries alike but for the number of their layer, with how many there are and how many numbers they hold."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for entry in entries:
        key = tuple(re.sub(r"\.\d+\.", ".*.", str(entry.get(name, ""))) for name in names)
        groups.setdefault(key, []).append(entry)
    sizes = [sum(torch.Size(e["shape"] or [0]).numel() for e in group) for group in groups.values()]
    return [
        ({**group[0], **dict(zip(names, key, strict=True))}, len(group), size)
        for (key, group), size in zip(groups.items(), sizes, strict=True)
    ]
