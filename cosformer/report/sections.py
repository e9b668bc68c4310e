"""The sections of the page as HTML; an empty string where a run has nothing for one."""

import math
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from cosformer.report.charts import Chart, Series, figure, short
from cosformer.report.reading import Run
from cosformer.report.text import visible

TASKS = {
    "lm": "causal language model", "mlm": "masked language model", "classify": "classifier",
    "translate": "encoder–decoder",
}  # fmt: skip
METRICS = {"bits_per_byte": "bits per byte", "accuracy": "accuracy", "perplexity": "perplexity", "loss": "loss"}
SMALL = {
    "learning_rate": "Learning rate", "grad_norm": "Norm of the gradient", "tokens_per_second": "Tokens per second",
}  # fmt: skip
EARLIER = 8  # samples of earlier steps, spread over the run


def headline(run: Run) -> str:
    recipe, s = run.recipe, run.summary
    what = TASKS.get(str(recipe.get("task")), "model")
    data = s["data"]["name"] if s else recipe.get("data", {}).get("source", "its data")
    attention = recipe.get("model", {}).get("attention", "cosformer")
    kinds = attention if isinstance(attention, str) else " and ".join(dict.fromkeys(attention))
    words = f"A {what} with {kinds} attention, trained on {data}"
    if s:
        machine = s["environment"]["device"]
        words = (
            f"A {what} of {count(s['parameters'])} parameters with {kinds} attention, trained on {data} for "
            f"{duration(s['seconds'])} on {machine}, {s['environment']['date']}"
        )
    about = f" {recipe['about']}" if recipe.get("about") else ""
    return escape(f"{words}.{about}")


def state(run: Run) -> str:
    """A note where the run is not finished."""
    if run.summary is not None and not run.summary.get("interrupted"):
        return ""
    events, lines = run.of("event"), run.of("train")
    last = max((line["step"] for line in lines), default=0)
    stopped = bool(events) and events[-1].get("event") not in ("start", "resume")
    words = f"This run is not finished: it has come to step {last:,}" + (" and was interrupted." if stopped else ".")
    return f'<p class="note">{escape(words)}</p>'


def numbers(run: Run) -> str:
    """Tiles, the held-out number first."""
    tiles: list[tuple[str, str, str]] = []
    s, result, metric = run.summary, run.result, run.metric
    held = (run.demo or {}).get("held_out")
    if held:
        where = f"on all {size(held['bytes'])} of {held['split']} text"
        tiles.append(("held-out bits per byte", f"{held['bits_per_byte']['this model']:.3f}", where))
    elif metric in result:
        low, high = result.get("accuracy_low"), result.get("accuracy_high")
        between = f"95% interval {low:.1%} to {high:.1%}" if metric == "accuracy" and low is not None else ""
        value = f"{result[metric]:.1%}" if metric == "accuracy" else f"{result[metric]:.3f}"
        split = run.recipe.get("data", {}).get("valid_split", "valid")
        unknown = f"; {result['unknown_share']:.1%} of its tokens are <unk>" if "unknown_share" in result else ""
        tiles.append((f"held-out {METRICS[metric]}", value, between or f"split {split}{unknown}"))
    train = run.of("train")
    if s:
        tiles.append(("parameters", count(s["parameters"]), _shape(run.recipe.get("model", {}))))
        tiles.append(("training", duration(s["seconds"]), f"{s['steps']:,} steps"))
        tiles.append(("tokens read", count(s["tokens"]), f"{count(s['data'].get('tokens') or 0)} in the training text"))
        if s.get("tokens_per_second"):
            share = s.get("share_of_peak")
            told = f"{share:.0%} of the measured matmul peak" if share else "median while training"
            tiles.append(("tokens per second", count(s["tokens_per_second"]), told))
        if s.get("memory_bytes"):
            tiles.append(("peak memory", size(s["memory_bytes"]), "of the training process"))
    elif train:
        tiles.append(("training loss", f"{train[-1]['loss']:.3f}", f"step {train[-1]['step']:,}"))
        tiles.append(("tokens read", count(train[-1]["tokens"]), duration(train[-1]["seconds"])))
    shown = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt>'
        f"<dd><strong>{escape(value)}</strong><span>{escape(note)}</span></dd></div>"
        for name, value, note in tiles
    )
    return f'<dl class="tiles">{shown}</dl>' if tiles else "<p>Nothing has been measured yet.</p>"


def _shape(model: Mapping[str, Any]) -> str:
    parts = [(model.get("num_hidden_layers"), "blocks"), (model.get("hidden_size"), "wide")]
    return ", ".join(f"{number:,} {what}" for number, what in parts if number)


def comparison(run: Run) -> str:
    """Bits per byte as bars: the model, and what needs no neural network."""
    held = (run.demo or {}).get("held_out")
    if not held:
        return ""
    found = held["bits_per_byte"]
    most = max(found.values())
    bars = "".join(
        f'<tr class="{"ours" if name == "this model" else ""}"><th scope="row">{escape(name)}</th>'
        f'<td><span class="bar" style="width:{100 * value / most:.1f}%"></span></td>'
        f'<td class="number">{value:.3f}</td></tr>'
        for name, value in found.items()
    )
    return (
        "<h3>Bits per byte of the held-out text</h3>"
        '<table class="bars"><thead class="unseen"><tr><th scope="col">by</th><th scope="col">bar</th>'
        f'<th scope="col">bits per byte</th></tr></thead><tbody>{bars}</tbody></table>'
        f'<p class="quiet">Less is better. {escape(held["how"])}</p>'
    )


def curves(run: Run) -> str:
    train, evals, metric = run.of("train"), run.of("eval"), run.metric
    held = (run.demo or {}).get("held_out", {}).get("bits_per_byte", {})
    levels = tuple((n, v) for n, v in held.items() if n != "this model") if metric == "bits_per_byte" else ()
    loss = Chart(
        identity="chart-loss", title="Loss (nats per token)", x="step", y="loss",
        series=[
            Series(name="training", points=_points(train, "loss"), colour=1),
            Series(name="held out", points=_points(evals, "loss"), colour=2),
        ],
    )  # fmt: skip
    charts = figure(loss)
    if metric != "loss":
        title = f"Held-out {METRICS[metric]}"
        line = [Series(name="held out", points=_points(evals, metric), colour=2)]
        charts += figure(
            Chart(identity="chart-held-out", title=title, x="step", y=METRICS[metric], series=line, levels=levels)
        )
    small = ""
    for name, title in SMALL.items():
        line = [Series(name=title.lower(), points=_points(train, name), colour=3)]
        chart = Chart(
            identity=f"chart-{name.replace('_', '-')}",
            title=title,
            x="step",
            y=title,
            series=line,
            from_zero=True,
            bare=True,
        )
        small += figure(chart)
    if not charts and not small:
        return "<p>No step has been logged yet.</p>"
    return f'<div class="charts">{charts}</div><div class="small-charts">{small}</div>'


def samples(run: Run) -> str:
    found, final = run.of("sample"), (run.demo or {}).get("samples")
    if not found and not final:
        return ""
    steps = sorted({line["step"] for line in found})
    last = final or [line for line in found if line["step"] == steps[-1]]
    when = "The finished model" if final else f"At step {steps[-1]:,}"
    between = " → " if run.recipe.get("task") == "translate" else ""  # it does not go on from its source
    written = "".join(_sample(line, between) for line in last)
    before = steps if final else steps[:-1]
    earlier = before[:: -(-len(before) // EARLIER)] if before else []
    grown = "".join(
        f"<details><summary>step {step:,}</summary>"
        + "".join(_sample(line, between) for line in found if line["step"] == step)
        + "</details>"
        for step in earlier
    )
    grown = f"<h3>Earlier in training</h3>{grown}" if grown else ""
    return f"<p>{when}. What it was given is marked; the rest is its own.</p>{written}{grown}"


def _sample(line: Mapping[str, Any], between: str) -> str:
    prompt, text = escape(visible(str(line["prompt"]))), escape(visible(str(line["text"])))
    return f'<pre class="text"><mark>{prompt}</mark>{between}{text}</pre>'


def speed(run: Run) -> str:
    """From the measurements beside the run: one attention by length, and generation by context."""
    demo = run.demo or {}
    rows, generated = demo.get("rows"), demo.get("generate")
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row["forward_backward_ms"]))
    names.sort(key=lambda name: not name.startswith("cosformer"))
    times = [Series(name=n, points=_timed(rows, n), colour=1 + (not n.startswith("cosformer"))) for n in names]
    body = figure(Chart(
        identity="chart-speed", title="One attention, forward + backward (ms)", x="tokens of the sequence", y="ms",
        series=times, log_x=True, log_y=True,
    ))  # fmt: skip
    if generated:
        models = generated["models"]
        for identity, key, title in (
            ("chart-step", "ms_per_token", "Writing one token (ms)"),
            ("chart-bytes", "cache_bytes", "Memory kept while writing (bytes)"),
        ):
            lines = [
                Series(name=name, points=_cells(ways["eager"], key), colour=1 if name == "cosformer" else 2)
                for name, ways in models.items()
            ]
            body += figure(Chart(
                identity=identity, title=title, x="tokens so far", y=title, series=lines, log_x=True,
                log_y=key == "cache_bytes", from_zero=key != "cache_bytes",
            ))  # fmt: skip
    told = [
        f"{row['speedup_forward_backward']:.1f}× at {row['length']:,}"
        for row in rows
        if row.get("speedup_forward_backward")
    ]
    words = f"Measured in this run on {demo['device']}; medians of repeats in turn."
    words += f" Training cosFormer attention against softmax: {', '.join(told)} tokens." if told else ""
    return f'<p>{escape(words)}</p><div class="charts">{body}</div>'


def settings(run: Run) -> str:
    plain = {k: v for k, v in run.recipe.items() if not isinstance(v, Mapping)}
    parts = {"recipe": plain, **{k: v for k, v in run.recipe.items() if isinstance(v, Mapping)}}
    shown = "".join(
        f"<div><h3>{escape(name)}</h3>{pairs(values.items())}</div>" for name, values in parts.items() if values
    )
    return f'<div class="tables">{shown}</div>'


def environment(run: Run) -> str:
    s = run.summary
    if s is None:
        return ""
    where = s["environment"]
    facts = {k: where[k] for k in ("device", "date", "commit", "command") if where.get(k)}
    facts |= {k: s[k] for k in ("precision", "compiled", "processes") if k in s}
    splits = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(
            f'<td class="number">{d[k]:,}</td>' if isinstance(d.get(k), int) else "<td>–</td>"
            for k in ("tokens", "bytes")
        )
        + f"<td><code>{escape(str(d.get('text_sha256', '–')))}</code></td></tr>"
        for name, d in s["data"].get("splits", {}).items()
    )
    data = (
        '<div class="scrolls"><table><thead><tr><th scope="col">split</th><th scope="col">tokens</th>'
        '<th scope="col">bytes</th><th scope="col">sha256 of the text</th></tr></thead>'
        f"<tbody>{splits}</tbody></table></div>"
    )  # fmt: skip
    events = "".join(f"<li>step {line['step']:,}: {escape(str(line.get('event')))}</li>" for line in run.of("event"))
    return (
        f"<h3>Data: {escape(str(s['data']['name']))}</h3>{data}"
        f'<div class="tables"><div><h3>Machine</h3>{pairs(facts.items())}</div>'
        f"<div><h3>Versions</h3>{pairs(where['versions'].items())}</div>"
        f'<div><h3>Events</h3><ul class="plain">{events}</ul></div></div>'
    )


def pairs(rows: Iterable[tuple[str, Any]]) -> str:
    """A table of names and values."""
    shown = "".join(
        f'<tr><th scope="row">{escape(str(k))}</th><td>{escape(visible(_value(v)))}</td></tr>' for k, v in rows
    )
    return f'<table class="pairs"><tbody>{shown}</tbody></table>'


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_value(x) for x in value) or "–"
    if isinstance(value, int) and abs(value) >= 10_000:
        return f"{value:,}"
    return repr(value) if isinstance(value, str) and value != value.strip() else str(value) if value != "" else "–"


def _points(lines: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]


def _timed(rows: list[dict[str, Any]], name: str) -> list[tuple[float, float]]:
    return [
        (row["length"], row["forward_backward_ms"][name]["ms"]) for row in rows if name in row["forward_backward_ms"]
    ]


def _cells(cells: Mapping[str, Any], key: str) -> list[tuple[float, float]]:
    return [(int(context), cell[key]) for context, cell in cells.items() if key in cell]


def count(x: float) -> str:
    return short(float(f"{x:.3g}")) if x >= 1e6 else f"{x:,.0f}"


def size(n: int) -> str:
    power = min(3, int(math.log(max(n, 1), 1024)))
    return f"{n:,} bytes" if power == 0 else f"{n / 1024**power:.3g} {('KiB', 'MiB', 'GiB')[power - 1]}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
