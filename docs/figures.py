"""Draws the figures of docs/method.md. Needs matplotlib and the installed package:

python docs/figures.py [--out docs/figures]
"""

import argparse
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # files only: no window, no display

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Polygon, Rectangle
from PIL import Image
from torch import Tensor

import cosformer

BLUE, ORANGE, GREEN, RED, GREY, BROWN, INK = "#2b6cb0", "#dd6b20", "#2f855a", "#c53030", "#718096", "#9c4221", "#1a202c"
MAP, FACTOR, LEVELS = "magma_r", "viridis", 96  # few enough levels for a palette
STYLE: dict[Any, Any] = {
    "figure.facecolor": "white", "savefig.facecolor": "white", "axes.facecolor": "white", "font.family": "DejaVu Sans",
    "font.size": 10, "axes.titlesize": 10.5, "axes.labelsize": 10, "text.color": INK, "axes.labelcolor": INK,
    "axes.edgecolor": "#4a5568", "xtick.color": INK, "ytick.color": INK, "axes.linewidth": 0.8, "legend.frameon": False,
    "xtick.labelsize": 9, "ytick.labelsize": 9, "legend.fontsize": 9.5,
}  # fmt: skip


def reweighting() -> Figure:
    """The factor cos(πd/(2M)): over distance, and as the matrix it multiplies the scores with."""
    figure, (curves, near, far) = plt.subplots(
        1, 3, figsize=(9.6, 3.1), layout="constrained", gridspec_kw={"width_ratios": [1.35, 1, 1]}
    )
    for horizon, color in ((64, RED), (128, ORANGE), (256, GREEN), (512, BLUE)):
        weight = _cosines(1, horizon, horizon)[0].numpy()  # [M], one query at 0
        curves.plot(range(horizon), weight, color=color, lw=2, label=f"M = {horizon}")
        curves.plot(2 * horizon / 3, 0.5, "o", color=color, ms=5)
    curves.axhline(0.5, color=GREY, lw=0.8, ls=(0, (4, 4)), zorder=0)
    curves.text(360, 0.512, "half at d = 2M/3", va="bottom", color=GREY, fontsize=9)
    curves.set(xlim=(0, 535), ylim=(0, 1.03), xlabel="distance d = |t − s|", ylabel="factor cos(πd / 2M)")
    curves.set_title("what is left at a distance")
    curves.set_xticks([0, 64, 128, 256, 384, 512])
    curves.legend(loc="upper right", bbox_to_anchor=(1.03, 1.04), handlelength=1.2, labelspacing=0.3)
    curves.spines[["top", "right"]].set_visible(False)

    image = None
    for axes, horizon, title in ((near, 64, "M = 64, the length"), (far, 256, "M = 256, four times it")):
        factor = _cosines(64, 64, horizon).numpy()
        image = axes.imshow(factor, cmap=plt.get_cmap(FACTOR, LEVELS), vmin=0, vmax=1)
        colors = ["white", "white", INK, INK]  # of the lines, light on dark and dark on light
        lines = axes.contour(factor, levels=[0.25, 0.5, 0.75, 0.95], colors=colors, linewidths=0.9)
        axes.clabel(lines, fmt="%g", fontsize=8.5)
        axes.set(title=title, xlabel="key s", xticks=[0, 16, 32, 48, 63], yticks=[0, 16, 32, 48, 63])
    near.set_ylabel("query t")
    assert image is not None
    figure.colorbar(image, ax=[near, far], label="factor", shrink=0.87, pad=0.02, aspect=16)
    return figure


def maps() -> Figure:
    """Softmax, ReLU without cosine and cosFormer on the same queries and keys."""
    length, repeats = 64, (7, 31, 55)
    q = k = _tokens(length, repeats)
    kinds = (
        ("softmax", lambda causal: _softmax_weights(q, k, causal)),
        # so far a horizon that every cosine is 1
        ("ReLU, no cosine", lambda causal: cosformer.attention_weights(q, k, causal=causal, horizon=10**9)[0, 0]),
        ("cosFormer, M = 64", lambda causal: cosformer.attention_weights(q, k, causal=causal, horizon=length)[0, 0]),
    )
    figure = plt.figure(figsize=(9.6, 8.7), layout="constrained")
    grid = figure.add_gridspec(3, 3, height_ratios=[1, 1, 0.6])
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()  # [T, S]
    for row, (causal, most) in enumerate(((False, 0.06), (True, 0.12))):
        squares: list[Axes] = []
        image = None
        for column, (name, weights) in enumerate(kinds):
            axes = figure.add_subplot(grid[row, column])
            w = weights(causal)
            mean = float((w * distance).sum(-1).mean())
            shown = (w.masked_fill(torch.ones_like(w, dtype=torch.bool).triu(1), math.nan) if causal else w).numpy()
            image = axes.imshow(shown, cmap=plt.get_cmap(MAP, LEVELS), vmin=0, vmax=most, interpolation="nearest")
            axes.set_title(f"mean |t − s| = {mean:.1f}" if row else f"{name}\nmean |t − s| = {mean:.1f}")
            axes.set(xticks=repeats, yticks=repeats, xlabel="key s")
            if column == 0:
                axes.set_ylabel(f"{'causal' if causal else 'bidirectional'}\nquery t")
            squares.append(axes)
        assert image is not None
        bar = figure.colorbar(image, ax=squares, label="weight", shrink=0.85, pad=0.015, extend="max", aspect=14)
        bar.set_ticks([0, most / 3, most * 2 / 3, most])

    axes = figure.add_subplot(grid[2, :])
    query = repeats[-1]
    for (name, weights), color in zip(kinds, (GREY, ORANGE, BLUE), strict=True):
        axes.plot(weights(False)[query].numpy(), color=color, lw=2, label=name)
    for place in repeats:
        axes.axvline(place, color=GREY, lw=0.8, ls=(0, (2, 3)), zorder=0)
    axes.set(xlim=(0, length - 1), xlabel="key s", xticks=(0, *repeats, 63), ylim=(0, None), ylabel="weight")
    axes.set_title(f"one row of the bidirectional maps: query {query}, whose token also stands at 7 and 31")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(0.15, 1.0), handlelength=1.4)
    return figure


def clock() -> Figure:
    """A state as a clock: each key's share turns by θ a step, and what is read is its real part."""
    figure, (dial, fade) = plt.subplots(
        1, 2, figsize=(9.6, 3.8), layout="constrained", gridspec_kw={"width_ratios": [1, 1.1]}
    )
    horizon, ages = 12, (0, 2, 4, 6, 8, 10)
    theta = math.pi / (2 * horizon)
    arc = torch.linspace(0, math.pi / 2, 100)
    colors = plt.get_cmap("viridis")
    dial.plot(arc.cos().numpy(), arc.sin().numpy(), color=GREY, lw=0.9)
    for end in ((1.13, 0), (0, 1.13)):
        _arrow(dial, (0, 0), end, color=INK, lw=0.9)
    for age in ages:
        x, y = math.cos(theta * age), math.sin(theta * age)
        color = colors(age / 13)
        _arrow(dial, (0, 0), (x, y), color=color, lw=2)
        dial.plot([x, x], [0, y], color=color, lw=1, ls=(0, (2, 2)))
        dial.plot(x, 0, "o", color=color, ms=5, clip_on=False, zorder=5)
        dial.text(1.05 * x + 0.01, max(1.04 * y, 0.03), f"age {age}", color=color, fontsize=9.5)
    dial.text(-0.04, 1.0, "age M = 12", ha="right", va="center", color=GREY, fontsize=9.5)
    dial.text(0.03, 1.13, "imaginary", va="center", fontsize=9.5)
    dial.text(1.15, 0, "real", va="center", fontsize=9.5)
    dial.text(0.5, -0.07, "real part: the weight read now", ha="center", va="top")
    dial.set(xlim=(-0.38, 1.32), ylim=(-0.16, 1.19), aspect="equal")
    dial.set_title("a key's share of the state, M = 12")
    dial.axis("off")

    # what the state of a short sequence gives to the keys it has consumed, seen from each later position
    ones = torch.ones(1, 1, horizon, 1)
    weights = cosformer.attention_weights(ones, ones, causal=True, horizon=horizon, normalize=False)[0, 0]  # [T, S]
    for key, color in ((0, RED), (3, ORANGE), (6, GREEN), (9, BLUE)):
        weight = weights[key:, key].numpy()
        fade.plot(range(key, horizon), weight, "o-", color=color, lw=1.8, ms=4.5, label=f"key {key}")
    fade.set(xlabel="position t", ylabel="weight of the key", ylim=(0, 1.05), xlim=(-0.3, 11.4))
    fade.set_xticks(range(horizon))
    fade.set_title("a step turns every share by the same θ")
    fade.legend(loc="lower left", handlelength=1.4)
    fade.spines[["top", "right"]].set_visible(False)
    return figure


def chunked() -> Figure:
    """The causal sum as tiles on the diagonal and a state that carries the rest."""
    figure, (matrix, flow) = plt.subplots(
        1, 2, figsize=(9.6, 4.9), layout="constrained", gridspec_kw={"width_ratios": [1, 1.3]}
    )
    _draw_tiles(matrix, chunk=8, count=4)
    _draw_flow(flow)
    return figure


def _draw_tiles(axes: Axes, chunk: int, count: int) -> None:
    length = chunk * count
    ones = torch.ones(1, 1, length, 1)
    weights = cosformer.attention_weights(ones, ones, causal=True, horizon=length, normalize=False)[0, 0]
    of = torch.arange(length) // chunk
    inside = of[:, None] == of  # [T, S]
    for part, cmap in ((inside, "Oranges"), (~inside, "Blues")):
        shown = torch.where(part & (weights > 0), weights, math.nan)
        axes.imshow(shown.numpy(), cmap=cmap, vmin=-0.15, vmax=2.0)
    for edge in range(chunk, length, chunk):
        axes.axhline(edge - 0.5, color="white", lw=3)
        axes.axvline(edge - 0.5, color="white", lw=3)
    axes.text(21, 6, "inside a chunk:\nscores × cosine tile", color=BROWN, ha="center", va="center")
    label = {"boxstyle": "round,pad=0.3", "fc": "white", "ec": "none", "alpha": 0.9}
    axes.text(
        11.5, 23.5, "all earlier chunks:\nread from the state", color="#2a4365", ha="center", va="center", bbox=label
    )
    middles = [chunk * i + (chunk - 1) / 2 for i in range(count)]
    names = [f"chunk {i}" for i in range(count)]
    axes.set_xticks(middles, names)
    axes.set_yticks(middles, names, rotation=90, va="center")
    axes.set(xlabel="keys s", ylabel="queries t")
    axes.tick_params(length=0)
    axes.set_title("which weight comes from where")
    axes.spines[:].set_visible(False)


def _draw_flow(axes: Axes) -> None:
    axes.set(xlim=(-0.6, 10.8), ylim=(0.5, 9.9))
    axes.axis("off")
    axes.set_title("the walk along time")
    states, rows, at_state, at_sum = (9.3, 5.3, 1.3), (7.3, 3.3), 1.1, 7.85
    circle = {"boxstyle": "circle,pad=0.12", "fc": "white", "ec": INK}
    small = {"fontsize": 9.5, "va": "center"}
    for y in states:
        _box(axes, (at_state, y), 2.1, 0.9, "state", BLUE)
    for i, y in enumerate(rows):
        name, above, below = ("n", "n + 1")[i], states[i], states[i + 1]
        _box(axes, (3.45, y), 2.15, 1.3, f"q, k, v\nchunk {name}", GREY)
        _tile(axes, (6.15, y), 1.2)
        _box(axes, (9.65, y), 2.1, 1.3, f"o = n / z\nchunk {name}", GREEN)
        _arrow(axes, (4.55, y), (5.5, y), color=ORANGE)
        _arrow(axes, (6.8, y), (at_sum - 0.25, y), color=ORANGE)
        _arrow(axes, (at_sum + 0.25, y), (8.55, y), color=INK)
        _arrow(axes, (2.35, y), (at_state + 0.25, y), color=BLUE)
        _arrow(axes, (at_state, above - 0.47), (at_state, y + 0.3), color=BLUE)
        _arrow(axes, (at_state, y - 0.3), (at_state, below + 0.47), color=BLUE)
        axes.plot([at_state + 1.08, at_sum], [above, above], color=BLUE, lw=1.6, solid_capstyle="projecting")
        _arrow(axes, (at_sum, above), (at_sum, y + 0.3), color=BLUE)
        axes.text(4.9, above + 0.3, "read with φ(q)", color=BLUE, ha="center", **small)
        axes.text(at_state + 0.15, above - 0.95, "turn by θC", color=BLUE, **small)
        axes.text(at_state + 0.3, y - 0.95, "write φ(k) ⊗ [v, 1]", color=BLUE, **small)
        for x in (at_state, at_sum):
            axes.text(x, y, "+", ha="center", va="center", fontsize=12, bbox=circle)
    axes.text(2.35, states[2], "2·K·(V + 1) numbers\nat any length", color=BLUE, **small)
    formula = "[φ(q) φ(k)ᵀ ⊙ cosines] [v, 1]\nK wide, lower triangle"
    axes.text(8.0, states[2] + 0.55, formula, color=BROWN, ha="center", **small)
    _arrow(axes, (6.6, states[2] + 0.95), (6.2, rows[1] - 0.65), color=BROWN, lw=0.9)


def _cosines(queries: int, keys: int, horizon: int) -> Tensor:
    """cos(π(t − s)/(2M)) [T, S], as the package weighs a query and a key of one feature, 1 in both."""
    q, k = torch.ones(1, 1, queries, 1), torch.ones(1, 1, keys, 1)
    return cosformer.attention_weights(q, k, horizon=horizon, normalize=False)[0, 0]


def _tokens(length: int, repeats: tuple[int, ...], width: int = 32, smooth: float = 1.6) -> Tensor:
    """Random features that change slowly along time, [1, 1, T, K]; the three around each of `repeats` are the same."""
    random = torch.Generator().manual_seed(7)
    noise = torch.randn(length, width, generator=random)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    x = torch.exp(-0.5 * (distance / smooth) ** 2) @ noise
    first = x[repeats[0] - 1 : repeats[0] + 2].clone()
    for place in repeats:
        x[place - 1 : place + 2] = first
    return (4.5 * x / x.norm(dim=-1, keepdim=True))[None, None]


def _softmax_weights(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    scores = (q @ k.mT)[0, 0] / math.sqrt(q.shape[-1])  # [T, S]
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return scores.softmax(-1)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], *, color, lw: float = 1.6) -> None:
    axes.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=12, color=color, lw=lw, shrinkA=0, shrinkB=0
        )
    )  # fmt: skip


def _box(axes: Axes, centre: tuple[float, float], width: float, height: float, text: str, color: str) -> None:
    corner = (centre[0] - width / 2, centre[1] - height / 2)
    style = "round,pad=0,rounding_size=0.18"
    axes.add_patch(FancyBboxPatch(corner, width, height, boxstyle=style, fc="white", ec=color, lw=1.6))
    axes.text(*centre, text, ha="center", va="center")


def _tile(axes: Axes, centre: tuple[float, float], side: float) -> None:
    x, y = centre[0] - side / 2, centre[1] - side / 2
    axes.add_patch(Polygon([(x, y), (x, y + side), (x + side, y)], fc="#fbd38d", ec="none"))
    axes.add_patch(Rectangle((x, y), side, side, fc="none", ec=ORANGE, lw=1.6))


FIGURES: dict[str, Callable[[], Figure]] = {
    "reweighting": reweighting, "maps": maps, "clock": clock, "chunked": chunked,
}  # fmt: skip


def draw_all(out: Path) -> list[Path]:
    """Every figure as out/<name>.png; the same bytes each time with one version of matplotlib."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, draw in FIGURES.items():
        with plt.rc_context(STYLE):
            figure = draw()
            path = out / f"{name}.png"
            figure.savefig(pixels := io.BytesIO(), dpi=160)
            plt.close(figure)
            # 256 colours of their own and no metadata: a third of the size, and no date or version inside
            Image.open(pixels).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        paths.append(path)
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the figures of docs/method.md.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "figures", help="folder to draw into")
    for path in draw_all(parser.parse_args().out):
        print(f"{path}  {path.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
