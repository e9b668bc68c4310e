"""`cosformer demo`: the main job from beginning to end on a CPU, in a few minutes."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cosformer.bench import environment
from cosformer.bench.attention import AttentionBench, Row, measure
from cosformer.bench.report import write_json
from cosformer.cli.bench import table
from cosformer.cli.models import refusals
from cosformer.cli.options import stages

if TYPE_CHECKING:
    from cosformer.training import Recipe

PROMPTS = ("def ", "import ", "    return ")
QUICK = (
    "train.steps=4", "train.batch=2", "train.warmup_steps=1", "train.save_every=2", "train.log_every=1",
    "data.length=64", "model.hidden_size=32", "model.num_hidden_layers=2", "model.num_attention_heads=2",
    "eval.every=2", "eval.batches=2", "sample.tokens=20",
)  # fmt: skip


def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run and its report.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="A tiny model and short sequences: seconds.")] = False,
) -> None:
    """Train the recipe lm-stdlib, hold it against gzip and an n-gram, let it write, measure it against softmax.

    On the CPU, in at most four minutes on two cores. Ends with report.html in the folder. Interrupted, the same command
    goes on where it was.
    """
    console, begin = Console(), time.monotonic()
    try:
        with refusals():
            report = _demo(console, out, quick)
    except KeyboardInterrupt:
        console.print(f"stopped; the same command goes on: cosformer demo --out {out}", markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    minutes, seconds = divmod(round(time.monotonic() - begin), 60)
    console.print(f"\n{minutes}:{seconds:02} in all. The report: {report}", markup=False, soft_wrap=True)


def _demo(console: Console, out: Path, quick: bool) -> Path:
    from cosformer.cli.watching import Shown
    from cosformer.models.writing import load_model, load_tokenizer
    from cosformer.report import DEMO, write_report
    from cosformer.training import load_recipe, open_data, train

    console.print(f"cosformer on {environment.devices()['cpu']}", markup=False)
    recipe = load_recipe("lm-stdlib", *(QUICK if quick else ()))
    _check_same(out, recipe)
    console.rule("1. train a language model on the sources of Python's standard library")
    cache = out.parent / "data-cache"
    summary = train(recipe, out, resume=True, device="cpu", cache=cache, watch=Shown(console))
    if summary.interrupted:
        raise KeyboardInterrupt
    model = load_model(out)
    tokenizer = load_tokenizer(out, model.config)

    console.rule("2. held-out text: bits per byte next to gzip's and an n-gram's")
    data = open_data(recipe, cache, splits=("test",), tokenizer=tokenizer)
    held = _held_out(console, model, data, quick)

    console.rule("3. what it writes")
    samples = _samples(console, model, tokenizer, 20 if quick else 160)

    console.rule("4. speed and memory against softmax")
    rows, generated = _speed(console, model.config, quick)

    result = {
        "benchmark": "demo", **environment.provenance("cpu"), "held_out": held, "samples": samples, "rows": rows,
        "generate": generated,
    }  # fmt: skip
    write_json(out / DEMO, result)
    with console.status("writing the report"):
        return write_report(out)


def _check_same(out: Path, recipe: "Recipe") -> None:
    """A run of other settings is not gone on with, and not overwritten."""
    from cosformer.training.run_folder import stored_recipe

    stored = stored_recipe(out)
    if stored is not None and (stored.name, stored.data, stored.train) != (recipe.name, recipe.data, recipe.train):
        raise ValueError(f"{out} holds another run ({stored.name}): remove it, or name another folder with --out")


def _held_out(console: Console, model: Any, data: Any, quick: bool) -> dict[str, Any]:
    from cosformer.report.yardsticks import OURS, held_out_bits

    options: dict[str, Any] = {"most": 1 << 14, "counted": 1 << 20} if quick else {}
    with console.status("evaluating") as status:
        held = held_out_bits(model, data, said=status.update, **options)
    shown = Table("bits per byte", "", title=f"{held['bytes']:,} bytes of {held['split']} text; less is better")
    for name, bits in held["bits_per_byte"].items():
        shown.add_row(f"{bits:.3f}", f"[bold]{name}[/bold]" if name == OURS else name)
    console.print(shown)
    console.print(held["how"], markup=False)
    return held


def _samples(console: Console, model: Any, tokenizer: Any, tokens: int) -> list[dict[str, str]]:
    """Shown as they are written."""
    from cosformer.cli.watching import harmless
    from cosformer.models.decoding import Sampling
    from cosformer.models.writing import continue_text

    found, sampling = [], Sampling(temperature=0.7, top_p=0.95)
    tokens = min(tokens, model.config.horizon - max(len(prompt) for prompt in PROMPTS))
    for seed, prompt in enumerate(PROMPTS):
        console.print(prompt, markup=False, highlight=False, style="bold", end="")

        def said(text: str) -> None:
            console.print(harmless(text), markup=False, highlight=False, soft_wrap=True, end="")

        text = continue_text(model, tokenizer, prompt, max_new_tokens=tokens, sampling=sampling, seed=seed, said=said)
        console.print("\n")
        found.append({"prompt": prompt, "text": text})
    return found


def _speed(console: Console, config: Any, quick: bool) -> tuple[list[dict[str, object]], dict[str, Any]]:
    """One attention by length, then whole models of this size by length of context."""
    from cosformer.bench import generate

    attention = AttentionBench(lengths=(128, 256) if quick else (512, 1_024, 2_048, 4_096), repeats=3 if quick else 5)
    writing = generate.GenerateBench(
        contexts=(128, 256) if quick else (256, 1_024, 4_096, 16_384), layers=config.num_hidden_layers,
        width=config.hidden_size, heads=config.num_attention_heads, vocab=config.vocab_size, steps=4,
        repeats=3 if quick else 5,
    )  # fmt: skip
    rows: list[Row] = []
    with stages(Console(stderr=True), "speed", len(attention.lengths) + generate.stages(writing)) as said:
        for row in measure(attention):
            rows.append(row)
            said(f"attention over {row.length:,} tokens")
        generated = generate.measure(writing, said=said)
    console.print(table(rows, attention))
    console.print(_kept(generated))
    return [row.to_json(attention.heads, attention.width) for row in rows], generated


def _kept(generated: dict[str, Any]) -> Table:
    shown = Table(title="writing a token with a model of this size")
    for heading in ("tokens so far", "softmax, ms", "ours, ms", "softmax cache", "our state"):
        shown.add_column(heading, justify="right")
    ours, softmax = (generated["models"][name]["eager"] for name in ("cosformer", "softmax"))
    for context, cell in ours.items():
        other = softmax[context]
        if "reason" in other:
            told = [other["reason"], f"{cell['ms_per_token']:.2f}", "–"]
        else:
            told = [
                f"{other['ms_per_token']:.2f}",
                f"{cell['ms_per_token']:.2f}",
                f"{other['cache_bytes'] / 1024:,.0f} KiB",
            ]
        shown.add_row(f"{int(context):,}", *told, f"{cell['cache_bytes'] / 1024:,.0f} KiB")
    return shown
