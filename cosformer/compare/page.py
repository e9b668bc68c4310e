"""The comparison as one page: crossovers, time, memory, quality, attention maps, what is missing, settings."""

import contextlib
import hashlib
import json
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from cosformer.compare.looks import looks, ordered
from cosformer.compare.maps import WORDS, WeightMap, weight_maps
from cosformer.compare.quality import Quality
from cosformer.compare.results import NAME, Result
from cosformer.compare.settings import WORKS, known, sha256
from cosformer.compare.tables import (
    UNITS,
    WHAT,
    WORK_WORDS,
    crossover_table,
    measured_modes,
    missing_table,
    over_length,
    quality_table,
    slug,
)
from cosformer.report import tables
from cosformer.report.charts import Chart, Series, figure
from cosformer.report.pixels import DARKEST, GAMMA, map_image
from cosformer.report.sections import pairs
from cosformer.report.shell import shell

HOW = (
    "One call is the attention alone, as a block of a model calls it between its projections: q, k and v lie there "
    "already, options are at their defaults, random features are drawn again while training as they are in a model. "
    "Attentions take turns, each in a process of its own. × beside a number: how many times better than softmax "
    "(the fastest of its kernels) at that length."
)
MEMORY_HOW = (
    "Most bytes at once during a call, beyond q, k, v and the gradient of the output, per token of the call. On a CPU "
    "it is what the process held, in pages; what is below a MiB is noise. × beside a number: how many times less."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """All that a page tells."""

    result: Result
    quality: Quality
    inputs: list[tuple[str, str]]
    """Name and sha256 of the files it was made from."""


def read_comparison(speed: Path, quality: Quality) -> Comparison:
    path = speed / NAME if speed.is_dir() else speed
    result = Result.read(path)
    own = (path.name, hashlib.sha256(path.read_bytes()).hexdigest())
    return Comparison(result=result, quality=quality, inputs=[own, *quality.inputs])


def comparison_page(found: Comparison) -> str:
    result = found.result
    lengths, attentions = result.lengths(), ordered(result.attentions())
    e = result.environment
    lead = (
        f"{len(attentions)} attentions over {lengths[0]:,} to {lengths[-1]:,} tokens on {e['device']}, {e['date']}"
        + (f", commit {e['commit']}" if e["commit"] else "")
    )
    sections = [
        ("crossover", "Where softmax is overtaken", _crossover(result)),
        ("time", "Time", _measured(result, "us_per_token", HOW)),
        ("memory", "Memory", _measured(result, "bytes_per_token", MEMORY_HOW)),
        ("quality", "Quality", _quality(found.quality)),
        ("maps", "What they attend to", _maps(result)),
        ("missing-cells", "What was not measured", _missing(result)),
        ("settings", "Settings, machine and hashes", _settings(found)),
    ]
    return shell(
        title="Attentions compared", kicker="cosformer · comparison", heading="Attentions compared",
        lead=escape(lead + "."), note="", sections=sections, source="the result files named below",
    )  # fmt: skip


def _crossover(result: Result) -> str:
    return (
        "<p>Interpolated between measured lengths, both axes logarithmic, and told with two digits.</p>"
        + tables.html(crossover_table(result, "us_per_token"))
        + tables.html(crossover_table(result, "bytes_per_token"))
    )


def _measured(result: Result, what: str, how: str) -> str:
    charts, shown = "", ""
    for mode in measured_modes(result):
        for work in WORKS:
            charts += figure(_chart(result, mode, work, what))
            shown += tables.html(over_length(result, mode, work, what))
    if not charts:
        return ""
    return f'<p>{escape(how)}</p><div class="charts">{charts}</div>{shown}'


def _chart(result: Result, mode: str, work: str, what: str) -> Chart:
    names = ordered(result.attentions())
    look = looks(names)
    series = []
    for name in names:
        cells = result.of(name, mode, work)
        points = [(float(c.length), x / UNITS[what]) for c in cells if (x := getattr(c, what)) is not None]
        series.append(Series(name=name, points=points, colour=look[name][0], style=look[name][1]))
    unit = "µs per token" if what == "us_per_token" else "KiB per token"
    return Chart(
        identity=f"chart-{WHAT[what][2]}-{mode}-{work}", title=f"{unit}: {mode}, {WORK_WORDS[work]}",
        x="tokens of a sequence", y=unit, series=series, log_x=True, log_y=True, many=True,
    )  # fmt: skip


def _quality(quality: Quality) -> str:
    if not quality.rows:
        return (
            "<p>No trainings were given: name the folder of a queue, a result file of runs or run folders with "
            "<code>--quality</code>.</p>"
        )
    charts, shown = "", ""
    for group in quality.groups():
        charts += _quality_chart(quality, group)
        shown += tables.html(quality_table(quality, group))
    charts = f'<div class="charts">{charts}</div>' if charts else ""
    return (
        "<p>Means over seeds. An interval is that of the seeds where there are several, else of the held-out "
        f"examples. Right and, where higher is better, up is better.</p>{charts}{shown}"
    )


def _quality_chart(quality: Quality, group: str) -> str:
    rows = [row for row in quality.rows if row.group == group and row.value is not None]
    by_tokens = all(row.tokens_per_second for row in rows)
    rate = "tokens_per_second" if by_tokens else "steps_per_second"
    rows = [row for row in rows if getattr(row, rate)]
    if len(rows) < 2:
        return ""
    look = looks(ordered(row.variant for row in rows))
    metric, better = rows[0].metric.replace("_", " "), rows[0].better
    series = [
        Series(
            name=row.variant, points=[(getattr(row, rate), row.value or 0.0)], colour=look[row.variant][0],
            style=look[row.variant][1],
            bars=((row.low, row.high),) if row.low is not None and row.high is not None else (),
        )
        for row in rows
    ]  # fmt: skip
    unit = "tokens/s in training" if by_tokens else "steps/s in training"
    return figure(Chart(
        identity=f"chart-quality-{slug(group)}", title=f"{group}: {metric} ({better} is better) against speed",
        x=unit, y=metric, series=series, many=True, scatter=True,
    ))  # fmt: skip


def _maps(result: Result) -> str:
    body = (
        "<p>Weights of each attention, untrained, on the same queries and keys: every word of the text below is a "
        "random vector, the same wherever the word stands, and a query looks for its own word. A row of a picture is "
        "a query, from the first word at the top; along it lie the keys. A faint colour: as much as from any other; "
        f"the full one: {int(DARKEST)} times that or more; negative weights, which estimates may have, are left "
        "blank. Blocks, strides and ranks are set smaller than their defaults, so that patterns show.</p>"
    )
    with contextlib.suppress(ImportError):  # an attention that is not here then says so in its place
        known(tuple(result.settings["imports"]))
    for mode in measured_modes(result):
        found = weight_maps(ordered(result.attentions()), mode)
        listed = escape(json.dumps(WORDS), quote=True)
        body += (
            f"<h3>{escape(mode)}</h3>"
            f'<div class="maps" data-darkest="{DARKEST:g}" data-gamma="{GAMMA:g}" data-words="{listed}">'
            f'<div class="side-by-side">{"".join(_map(one) for one in found)}</div>'
            '<p class="readout" role="status" aria-live="polite">Point at a map to see which word looks at which.</p>'
            "</div>"
        )
    return f'{body}<pre class="text">{escape(" ".join(WORDS))}</pre>'


def _map(one: WeightMap) -> str:
    name = escape(one.attention)
    if one.weights is None:
        inside = f'<p class="lacks">{escape(one.why)}</p>'
    else:
        size = len(one.weights)
        inside = (
            f'<img src="{map_image(one.weights, causal=one.mode == "causal")}" width="{size}" height="{size}" '
            f'data-name="{name}" alt="{escape(one.mode)} weights of {name} on {size} words">'
        )
    return f"<figure><figcaption>{name}</figcaption>{inside}</figure>"


def _missing(result: Result) -> str:
    table = missing_table(result)
    return tables.html(table) if table.rows else "<p>Every cell has its number.</p>"


def _settings(found: Comparison) -> str:
    e = found.result.environment
    facts: dict[str, Any] = {k: e[k] for k in ("device", "date", "commit", "command") if e.get(k)}
    hashes = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td><code>{digest}</code></td></tr>'
        for name, digest in [*found.inputs, ("settings", sha256(found.result.settings))]
    )
    return (
        f'<div class="tables"><div><h3>Settings</h3>{pairs(found.result.settings.items())}</div>'
        f"<div><h3>Machine</h3>{pairs(facts.items())}</div>"
        f"<div><h3>Versions</h3>{pairs(e['versions'].items())}</div></div>"
        '<h3>sha256</h3><div class="scrolls"><table><thead><tr><th scope="col">file</th><th scope="col">sha256</th>'
        f"</tr></thead><tbody>{hashes}</tbody></table></div>"
    )
