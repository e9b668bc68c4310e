"""The same tables as the page's, as Markdown for the documentation."""

from cosformer.compare.looks import ordered
from cosformer.compare.page import HOW, MEMORY_HOW, Comparison
from cosformer.compare.settings import WORKS, sha256
from cosformer.compare.tables import crossover_table, measured_modes, missing_table, over_length, quality_table
from cosformer.report.tables import markdown


def comparison_markdown(found: Comparison, *, title: str = "Attentions compared") -> str:
    result, e = found.result, found.result.environment
    lengths, settings = result.lengths(), result.settings
    names = ", ".join(f"`{name}`" for name in ordered(result.attentions()))
    parts = [
        f"# {title}",
        f"{lengths[0]:,} to {lengths[-1]:,} tokens, {settings['heads']} heads × {settings['width']}, "
        f"{settings['tokens']:,} tokens a call (a longer sequence is alone), {settings['dtype']}, on {e['device']}, "
        f"{e['date']}, commit {e['commit'] or 'unknown'}: {names}.",
        HOW,
        "## Where softmax is overtaken",
        markdown(crossover_table(result, "us_per_token")),
        markdown(crossover_table(result, "bytes_per_token")),
        "## Time",
        *_measured(found, "us_per_token"),
        "## Memory",
        MEMORY_HOW,
        *_measured(found, "bytes_per_token"),
    ]
    if found.quality.rows:
        parts += ["## Quality", *(markdown(quality_table(found.quality, g)) for g in found.quality.groups())]
    missing = missing_table(result)
    if missing.rows:
        parts += ["## What was not measured", markdown(missing)]
    parts += ["## From", *_origin(found)]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def _measured(found: Comparison, what: str) -> list[str]:
    modes = measured_modes(found.result)
    return [markdown(over_length(found.result, mode, work, what)) for mode in modes for work in WORKS]


def _origin(found: Comparison) -> list[str]:
    e = found.result.environment
    versions = ", ".join(f"{name} {number}" for name, number in e["versions"].items())
    files = "\n".join(f"- `{name}`, sha256 `{digest}`" for name, digest in found.inputs)
    return [f"`{e['command']}` with {versions}.", f"{files}\n- settings, sha256 `{sha256(found.result.settings)}`"]
