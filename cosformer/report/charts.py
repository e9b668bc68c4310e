"""Charts as SVG, drawn here: they show without JavaScript, which adds what is under the pointer.

A figure holds the chart twice, for wide and for narrow screens: letters of one picture cannot suit both.
"""

import json
import math
from dataclasses import dataclass, replace
from html import escape

from cosformer.report.marks import end_labels, line_style, mark

WIDE, NARROW, SMALL = (560, 270), (350, 240), (300, 170)
TALL_WIDE, TALL_NARROW = (530, 370), (350, 330)
LABELS = 104  # beside the plot, for names at the ends of lines
MOST_POINTS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    name: str
    points: list[tuple[float, float]]
    colour: int = 1
    """Of the page's series colours."""
    style: int = 0
    """Of lines and marks, for where there are many series: colour alone does not tell them apart."""
    bars: tuple[tuple[float, float], ...] = ()
    """Below and above each point, how far it may be off; empty: not told."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    identity: str
    title: str
    x: str
    y: str
    series: list[Series]
    levels: tuple[tuple[str, float], ...] = ()
    """Names and heights of dashed lines to compare with."""
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False
    bare: bool = False
    """Small: no legend, and one size."""
    many: bool = False
    """Large, for many lines: names at their ends, a legend that hides and shows them."""
    scatter: bool = False
    """Points without lines; what is told is that of the nearest."""


def figure(chart: Chart) -> str:
    """The chart with its legend, and its numbers for the script and for those who cannot see it."""
    chart = _drawable(chart)
    if not any(s.points for s in chart.series):
        return ""
    numbers = {
        "x": chart.x, "y": chart.y, "exact": chart.many, "scatter": chart.scatter,
        "series": [{"name": s.name, "colour": s.colour, "points": s.points} for s in chart.series],
    }  # fmt: skip
    wide, narrow = (TALL_WIDE, TALL_NARROW) if chart.many else (WIDE, NARROW)
    sizes = (("only", SMALL),) if chart.bare else (("wide", wide), ("narrow", narrow))
    drawn = "".join(svg(chart, size, kind) for kind, size in sizes)
    title = f'<h3 id="{chart.identity}-title">{escape(chart.title)}</h3>'
    classes = "chart" + (" bare" if chart.bare else "") + (" many" if chart.many else "")
    return (
        f'<figure class="{classes}" id="{chart.identity}" '
        f'data-chart="{escape(json.dumps(numbers), quote=True)}">{title}{_legend(chart)}'
        f'<div class="plot">{drawn}<div class="tip" role="status" hidden></div></div></figure>'
    )


def _legend(chart: Chart) -> str:
    """Names of the lines; in a chart of many, switches."""
    if chart.bare:
        return ""
    entries = []
    for i, s in enumerate(chart.series):
        if not s.points:
            continue
        name = f'<span class="swatch c{s.colour}"></span>{escape(s.name)}'
        if chart.many:
            sample = f'<svg class="key c{s.colour}" viewBox="0 0 26 10" aria-hidden="true">'
            sample += "" if chart.scatter else f'<line class="line{line_style(s.style)}" x1="0" x2="26" y1="5" y2="5"/>'
            sample += f"{mark(13, 5, s.style)}</svg>"
            name = f'<button type="button" data-series="{i}" aria-pressed="true">{sample}{escape(s.name)}</button>'
        entries.append(f"<li>{name}</li>")
    return f'<ul class="legend">{"".join(entries)}</ul>'


def svg(chart: Chart, size: tuple[int, int], kind: str) -> str:
    width, height = size
    labelled = chart.many and kind == "wide"
    left, right, top, bottom = 52, LABELS if labelled else 16, 12, 36
    ys = [y for s in chart.series for _, y in s.points] + [y for _, y in chart.levels]
    ys += [y for s in chart.series for ends in s.bars for y in ends]
    xs = [x for s in chart.series for x, _ in s.points]
    few = 4 if width < 500 else 7
    left_most = 0 if chart.scatter else min(xs)
    x_ticks = log_ticks(min(xs), max(xs), xs, few) if chart.log_x else ticks(left_most, max(xs), few)
    y_ticks = log_ticks(min(ys), max(ys)) if chart.log_y else ticks(0 if chart.from_zero else min(ys), max(ys), 5)
    if chart.many and chart.log_y:
        y_ticks = inner_ticks(min(ys) / 1.2, max(ys) * 1.2)
    x_low, x_high = (min(xs), max(xs)) if chart.log_x else (min(x_ticks[0], min(xs)), max(xs))
    if chart.scatter:  # no point on an edge
        x_low, x_high = (0, x_ticks[-1]) if not chart.log_x else (x_low / 1.3, x_high * 1.3)
    y_low, y_high = min(y_ticks[0], *ys), max(y_ticks[-1], *ys)
    if chart.many and chart.log_y:
        y_low, y_high = min(ys) / 1.2, max(ys) * 1.2
    a_x, b_x = _line(x_low, x_high, left, width - right, chart.log_x)
    a_y, b_y = _line(y_low, y_high, height - bottom, top, chart.log_y)

    def at(x: float, y: float) -> tuple[float, float]:
        return a_x * _scaled(x, chart.log_x) + b_x, a_y * _scaled(y, chart.log_y) + b_y

    parts = []
    for y in y_ticks:
        _, py = at(x_low, y)
        parts.append(f'<line class="grid" x1="{left}" x2="{width - right}" y1="{py:.1f}" y2="{py:.1f}"/>')
        parts.append(f'<text class="tick" x="{left - 7}" y="{py + 4:.1f}" text-anchor="end">{short(y)}</text>')
    for x in x_ticks:
        px, _ = at(x, y_low)
        if left - 1 <= px <= width - right + 1:
            parts.append(
                f'<text class="tick" x="{px:.1f}" y="{height - bottom + 17}" text-anchor="middle">{short(x)}</text>'
            )
    parts.append(
        f'<text class="axis" x="{(left + width - right) / 2:.0f}" y="{height - 3}" text-anchor="middle">'
        f"{escape(chart.x)}</text>"
    )
    free = math.inf
    for name, y in sorted(chart.levels, key=lambda level: level[1]):  # from the bottom up: names keep their distance
        _, py = at(x_low, y)
        free = min(py - 5, free - 15)
        parts.append(f'<line class="level" x1="{left}" x2="{width - right}" y1="{py:.1f}" y2="{py:.1f}"/>')
        parts.append(
            f'<text class="level" x="{width - right}" y="{free:.1f}" text-anchor="end">{escape(name)} {short(y)}</text>'
        )
    ends = []
    for i, s in enumerate(chart.series):
        placed = [at(x, y) for x, y in s.points]
        if not placed:
            continue
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        drawn = []
        if len(placed) > 1 and not chart.scatter:
            drawn.append(f'<polyline class="line{line_style(s.style)}" points="{path}"/>')
        for (x, y), (px, _) in zip(s.bars, placed, strict=False):
            (_, low), (_, high) = at(x_low, x), at(x_low, y)
            drawn.append(f'<line class="bar-line" x1="{px:.1f}" x2="{px:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>')
        if len(placed) <= 30 and not chart.bare:
            drawn += [mark(x, y, s.style) for x, y in placed]
        parts.append(f'<g class="c{s.colour}" data-series="{i}">{"".join(drawn)}</g>')
        ends.append((i, s.name, s.colour, *placed[-1]))
    if labelled:
        parts += end_labels(ends, width - right, top, height - bottom)
    scale = [round(v, 6) for v in (a_x, b_x, a_y, b_y)]
    return (
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" tabindex="0" '
        f'aria-label="{escape(in_words(chart), quote=True)}" data-scale="{json.dumps(scale)}" '
        f'data-log="{int(chart.log_x)}{int(chart.log_y)}" data-floor="{height - bottom}" data-top="{top}">'
        f"{''.join(parts)}</svg>"
    )


def in_words(chart: Chart) -> str:
    """For those who hear the page: each line's ends."""
    told = []
    for s in chart.series:
        if s.points:
            (x0, y0), (x1, y1) = s.points[0], s.points[-1]
            told.append(f"{s.name}: {short(y0)} at {short(x0)}, {short(y1)} at {short(x1)}")
    told += [f"{name}: {short(y)}" for name, y in chart.levels]
    return f"{chart.title}. {chart.y} over {chart.x}. " + "; ".join(told)


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers from at or below `low` to at or above `high`: 1, 2 or 5 times a power of ten apart."""
    if high <= low:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(low: float, high: float, measured: list[float] | None = None, most: int = 6) -> list[float]:
    """Powers of ten around the range; or the measured places themselves, every so many of them."""
    places = sorted(set(measured or ()))
    if places and len(places) <= 12:
        return places[:: -(-len(places) // max(most, 1))]
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    step = max(1, -(-(last - first) // 6))
    return [10.0**i for i in range(first, last + 1, step)]


def inner_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside the range; 1, 2 and 5 times them where these are few. The range itself where none is."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [f * 10.0**i for i in powers for f in factors if low <= f * 10.0**i <= high]
        if len(found) > 2:
            return found
    return found or [low, high]


def short(x: float) -> str:
    """A number as a person writes it: 3.21, 0.0005, 12,000, 1.5M."""
    if x == 0:
        return "0"
    size = abs(x)
    for limit, unit in ((1e9, "G"), (1e6, "M")):
        if size >= limit:
            return f"{x / limit:.3g}{unit}"
    if size >= 1000:
        return f"{x:,.0f}"
    if size < 1e-4:
        return f"{x:.1e}".replace("e-0", "e-")
    return f"{x:.3g}"


def _drawable(chart: Chart) -> Chart:
    """Finite points only (positive where the scale is logarithmic), and not more than a screen can show."""
    lines = []
    for s in chart.series:
        kept = [
            (x, y) for x, y in s.points
            if math.isfinite(x) and math.isfinite(y) and (x > 0 or not chart.log_x) and (y > 0 or not chart.log_y)
        ]  # fmt: skip
        every = -(-len(kept) // MOST_POINTS)
        if every > 1:
            kept = kept[:-1:every] + kept[-1:]
        lines.append(replace(s, points=[(_rounded(x), _rounded(y)) for x, y in kept]))
    return replace(chart, series=lines)


def _rounded(x: float) -> float:
    return x if isinstance(x, int) else float(f"{x:.6g}")


def _scaled(x: float, log: bool) -> float:
    return math.log10(x) if log else x


def _line(low: float, high: float, start: float, end: float, log: bool) -> tuple[float, float]:
    """a and b of pixel = a·x + b."""
    low, high = _scaled(low, log), _scaled(high, log)
    if high <= low:
        return 0.0, (start + end) / 2
    a = (end - start) / (high - low)
    return a, start - a * low
