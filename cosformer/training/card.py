"""The model card in the run folder: recipe, data, metrics, machine, commit."""

from collections.abc import Mapping
from typing import Any

from cosformer.training.recipe import Recipe

TASKS = {
    "lm": "Causal language model", "mlm": "Masked language model", "classify": "Classifier",
    "translate": "Encoder–decoder",
}  # fmt: skip
TAGS = {
    "lm": "text-generation", "mlm": "fill-mask", "classify": "text-classification", "translate": "translation",
}  # fmt: skip


def card(recipe: Recipe, summary: Mapping[str, Any], lines: list[dict[str, Any]]) -> str:
    """Markdown with the header that model hubs read."""
    environment, data = summary["environment"], summary["data"]
    attention = recipe.model.config.get("attention", "cosformer")
    kinds = attention if isinstance(attention, str) else ", ".join(attention)
    parts = [
        f"---\nlibrary_name: transformers\npipeline_tag: {TAGS[recipe.task]}\ntags:\n- cosformer\n---\n",
        f"# {recipe.name}\n",
        f"{recipe.about}\n" if recipe.about else "",
        f"{TASKS[recipe.task]} of {summary['parameters']:,} parameters, {kinds} attention, by `cosformer train`.\n",
        f"```python\n{_use(recipe)}```\n",
        "## Metrics\n",
        _table(("metric", "value"), [(k, _number(v)) for k, v in summary["metrics"].items()]),
        f"Of step {summary['best_step'] or summary['steps']:,} of {summary['steps']:,}, on the split "
        f"`{recipe.data.valid_split}`"
        + (f" ({recipe.eval.batches} batches spread over it)" if recipe.eval.batches else "")
        + ". `cosformer eval` measures the whole of any split.\n",
        _curve(lines),
        "## Data\n",
        f"`{data['name']}`, vocabulary of {data['vocab_size']:,} tokens.\n",
        _table(
            ("split", "tokens", "bytes", "sha256 of the text's hashes"),
            [(s, f"{d['tokens']:,}", f"{d['bytes']:,}", f"`{d['text_sha256']}`") for s, d in data["splits"].items()],
        ),
        "## Training\n",
        f"{summary['steps']:,} steps, {summary['tokens']:,} tokens, {summary['seconds']:,.0f} s of training "
        f"({_number(summary['tokens_per_second'])} tokens/s) in {summary['processes']} process(es), "
        f"{summary['precision']}, on {environment['device']}, {environment['date']}.\n",
        f"cosformer {environment['versions']['cosformer']}, commit {environment['commit'] or 'unknown'}, torch "
        f"{environment['versions']['torch']}, transformers {environment['versions'].get('transformers', '?')}.\n",
        f"`{environment['command']}`\n",
        f"## Recipe\n\n```toml\n{recipe.toml()}```\n",
    ]
    return "\n".join(part for part in parts if part)


def _use(recipe: Recipe) -> str:
    """Python that asks the model something. The tokenizer marks texts as training did (saved_tokenizer.py)."""
    auto, option, needs, ask = _auto(recipe), "", "", ""
    if recipe.task == "lm":
        ask = 'ids = tokenizer("Once", return_tensors="pt").input_ids\n'
        ask += "print(tokenizer.decode(model.generate(ids, max_new_tokens=20)[0]))\n"
    elif recipe.task == "translate":
        ask = 'ids = tokenizer("a sentence", return_tensors="pt").input_ids\n'
        ask += "print(tokenizer.decode(model.generate(ids, max_new_tokens=20)[0], skip_special_tokens=True))\n"
    elif recipe.tokenizer.kind != "task" and not recipe.data.apart:
        kind, text, more, needs = TAGS[recipe.task], '"a text"', "", ", pipeline"
        if recipe.task == "mlm":  # a text that spells <mask> is letters otherwise
            option, text = ", split_special_tokens=False", 'f"a {tokenizer.mask_token} text"'
        else:
            more = ", truncation=True"
        ask = f'print(pipeline("{kind}", model=model, tokenizer=tokenizer)({text}{more}))\n'
    return (
        "import cosformer.models  # registers the classes\n"
        f"from transformers import {auto}, AutoTokenizer{needs}\n\n"
        f'model = {auto}.from_pretrained("this folder")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("this folder"{option})\n{ask}'
    )


def _auto(recipe: Recipe) -> str:
    if recipe.task == "classify":
        return "AutoModel" if recipe.data.apart else "AutoModelForSequenceClassification"
    return {"lm": "AutoModelForCausalLM", "mlm": "AutoModelForMaskedLM", "translate": "AutoModelForSeq2SeqLM"}[
        recipe.task
    ]


def _curve(lines: list[dict[str, Any]]) -> str:
    """Every evaluation, at most a dozen of them."""
    evals = [line for line in lines if line["kind"] == "eval"]
    if len(evals) < 2:
        return ""
    shown = evals[:: -(-len(evals) // 12)]
    shown = shown if shown[-1] is evals[-1] else [*shown, evals[-1]]
    names = [n for n in ("loss", "bits_per_byte", "perplexity", "accuracy") if all(n in line for line in shown)]
    rows = [(f"{line['step']:,}", *(_number(line[name]) for name in names)) for line in shown]
    return _table(("step", *names), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, tuple("---" for _ in head), *rows)]
    return "\n".join(lines) + "\n"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
