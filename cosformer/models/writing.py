"""A model and its tokenizer from one folder, and text that goes on: what `cosformer generate` does."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, TextStreamer
from transformers.utils import logging

from cosformer.models.classifiers import (
    CosformerForPairClassification,
    CosformerForSequenceClassification,
    CosformerForTokenClassification,
)
from cosformer.models.configuration import CosformerConfig
from cosformer.models.decoding import GraphDecoder, Sampling
from cosformer.models.encoder_decoder import CosformerForConditionalGeneration
from cosformer.models.kinds import KINDS
from cosformer.models.language_models import CosformerForCausalLM, CosformerForMaskedLM
from cosformer.models.model import CosformerModel

USUAL = 100  # tokens that are written where nobody says how many
CLASSES: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        CosformerModel, CosformerForCausalLM, CosformerForMaskedLM, CosformerForSequenceClassification,
        CosformerForTokenClassification, CosformerForPairClassification, CosformerForConditionalGeneration,
    )
}  # fmt: skip


def read_config(folder: Path) -> CosformerConfig:
    """The config of a saved model; refuses what is none, or is another's."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder: name one that save_pretrained or `cosformer convert` made")
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} has no config.json: it holds no model")
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{folder / 'config.json'} is not a readable config ({error})") from error
    if kind != "cosformer":
        raise ValueError(
            f"{folder} has model_type={kind!r} and is no cosFormer model: `cosformer convert` makes one of it"
        )
    return CosformerConfig.from_pretrained(folder)


def class_of(config: CosformerConfig) -> Any:
    """The class a config was saved with; the body where it does not say."""
    name = (config.architectures or [""])[0]
    if name not in CLASSES and config.is_encoder_decoder:
        return CosformerForConditionalGeneration
    return CLASSES.get(name, CosformerModel)


def hide_bars() -> None:
    """Those of transformers, for a command that shows its own progress: loading takes a moment."""
    logging.disable_progress_bar()


def load_model(folder: Path, *, device: str = "cpu", dtype: torch.dtype | None = None) -> Any:
    """The saved model, whole: one that lacks a tensor is refused rather than completed at random."""
    cls = class_of(read_config(folder))
    model, info = cls.from_pretrained(folder, dtype=dtype or "auto", output_loading_info=True)
    if missing := sorted(info["missing_keys"]):
        rest = f" and {len(missing) - 8} more" if len(missing) > 8 else ""
        raise RuntimeError(f"{folder} lacks {', '.join(missing[:8])}{rest}: it is not a whole {cls.__name__}")
    return model.to(device).eval()


def load_tokenizer(folder: Path, config: CosformerConfig) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{folder} has no tokenizer that loads ({str(error).splitlines()[0]}): save one beside the model, as in "
            "byte_tokenizer().save_pretrained(...)"
        ) from error
    if len(tokenizer) > config.vocab_size:
        raise ValueError(
            f"the tokenizer in {folder} has {len(tokenizer)} tokens and the model knows {config.vocab_size}: it is "
            "another model's"
        )
    return tokenizer


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Of a text as it is; refuses one that the tokenizer has no tokens for."""
    try:
        return list(tokenizer(text).input_ids)
    except Exception as error:  # the package `tokenizers` has no kinds of its own
        known = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
        shown = " ".join(known[:20]) + (" …" if len(known) > 20 else "")
        raise ValueError(
            f"the tokenizer has no tokens for {text!r} ({error}): use those of its task, such as {shown}"
        ) from error


class _Said(TextStreamer):
    """Hands over text as soon as it is whole letters and words."""

    def __init__(self, tokenizer: Any, said: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.said = said

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if text:
            self.said(text)


def continue_text(
    model: Any, tokenizer: Any, prompt: str, *, max_new_tokens: int | None = None, sampling: Sampling | None = None,
    seed: int = 0, graph: bool = False, said: Callable[[str], None] | None = None,
) -> str:  # fmt: skip
    """What follows `prompt` (of an encoder–decoder: its answer). `said` gets the text piece by piece as it is written.

    `max_new_tokens`: None writes 100, or what the horizon leaves. `graph`: the step is captured in a CUDA graph, by
    GraphDecoder.
    """
    sampling = sampling or Sampling()
    if not isinstance(model, CosformerForCausalLM | CosformerForConditionalGeneration):
        raise ValueError(
            f"a {type(model).__name__} writes no text: use a CosformerForCausalLM or CosformerForConditionalGeneration"
        )
    ids = torch.tensor([prompt_ids(tokenizer, prompt, source=model.config.is_encoder_decoder)])
    count = max(1, min(USUAL, _room(model, ids.shape[1]))) if max_new_tokens is None else max_new_tokens
    _check_length(model, ids.shape[1], count)
    ends = model.generation_config.eos_token_id
    ends = tokenizer.eos_token_id if ends is None else ends
    streamer = None if said is None else _Said(tokenizer, said)
    with torch.random.fork_rng(devices=[] if model.device.type == "cpu" else [model.device]):
        torch.manual_seed(seed)
        write = _captured if graph else _called
        new = write(model, ids.to(model.device), count, sampling, seed, ends, tokenizer, streamer)
    return tokenizer.decode(new, skip_special_tokens=True)


def prompt_ids(tokenizer: Any, prompt: str, *, source: bool = False) -> list[int]:
    """Of an empty prompt <eos>, the end of the document before: so texts begin in training. Without one, <bos>.

    source: of an encoder–decoder, whose sources end with <eos> in training.
    """
    ids, end = token_ids(tokenizer, prompt), tokenizer.eos_token_id
    if source and end is not None and ids[-1:] != [end]:
        ids.append(end)
    if ids:
        return ids
    start = tokenizer.bos_token_id if end is None else end
    if start is None:
        raise ValueError("the prompt is empty and the tokenizer has no token to begin with: give a prompt")
    return [start]


def _called(
    model: Any, ids: Tensor, count: int, sampling: Sampling, seed: int, ends: Any, tokenizer: Any, streamer: Any
) -> Tensor:
    options: dict[str, Any] = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    if sampling.temperature > 0:
        options = {"do_sample": True, "temperature": sampling.temperature, "top_k": sampling.top_k or 0}
        options["top_p"] = 1.0 if sampling.top_p is None else sampling.top_p
    pad = model.generation_config.pad_token_id
    pad = tokenizer.pad_token_id if pad is None else pad
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, eos_token_id=ends, pad_token_id=pad,
        use_cache=all(KINDS[name].continues for name in model.config.attentions), streamer=streamer, **options,
    )  # fmt: skip
    return out[0, 1 if model.config.is_encoder_decoder else ids.shape[1] :]


def _captured(
    model: Any, ids: Tensor, count: int, sampling: Sampling, seed: int, ends: Any, tokenizer: Any, streamer: Any
) -> Tensor:
    if not isinstance(model, CosformerForCausalLM):
        raise ValueError(f"a {type(model).__name__} is not captured: GraphDecoder writes with a CosformerForCausalLM")
    if isinstance(ends, list):
        if len(ends) > 1:
            raise ValueError(f"the model ends at any of {ends}: GraphDecoder looks for one token; leave the graph out")
        ends = ends[0]
    decoder = GraphDecoder(model, max_length=ids.shape[1] + count, sampling=sampling, seed=seed)
    if streamer is None:
        return decoder.generate(ids, count, eos_token_id=ends)[0, ids.shape[1] :]
    streamer.put(ids.cpu())
    new = decoder.generate(ids, count, eos_token_id=ends, said=lambda token: streamer.put(token[0].cpu()))
    streamer.end()
    return new[0, ids.shape[1] :]


def _room(model: Any, prompt: int) -> int:
    """How many tokens can follow; 0 or less where the prompt itself is too long."""
    config = model.config
    if not config.has_longest:
        return sys.maxsize
    if config.is_encoder_decoder:
        return config.horizon if prompt <= config.horizon else 0
    return config.horizon - prompt + 1  # the last token is written and not read


def _check_length(model: Any, prompt: int, new: int) -> None:
    if new > _room(model, prompt):
        raise ValueError(
            f"a prompt of {prompt} tokens and {new} new ones, but the model's horizon is {model.config.horizon}: "
            "shorten the prompt or ask for fewer (max_new_tokens)"
        )
