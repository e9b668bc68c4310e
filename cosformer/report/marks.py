"""Marks, dashes and names at the ends of lines: what tells series apart where there are more of them than colours."""

from html import escape

DASHES = ("", " dashed", " dotted")
GAP = 13  # pixels between names


def line_style(style: int) -> str:
    """A class to add: whole, dashed or dotted, in turn."""
    return DASHES[style % len(DASHES)]


def mark(x: float, y: float, style: int) -> str:
    """Disc, square, triangle or diamond, in turn, in the colour around it."""
    shape = style % 4
    if shape == 0:
        return f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
    corners = {
        1: ((-2.8, -2.8), (2.8, -2.8), (2.8, 2.8), (-2.8, 2.8)),
        2: ((0, -3.8), (3.6, 2.6), (-3.6, 2.6)),
        3: ((0, -4), (4, 0), (0, 4), (-4, 0)),
    }[shape]
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="dot" points="{points}"/>'


def end_labels(ends: list[tuple[int, str, int, float, float]], edge: float, top: float, floor: float) -> list[str]:
    """Names right of the plot, beside where their lines end, moved apart where they would overlap.

    ends: number of the series, its name, its colour, the last point in pixels. A thin line joins a name to a line that
    ends elsewhere.
    """
    ordered = sorted(ends, key=lambda end: end[4])
    heights = spread([end[4] for end in ordered], GAP, top, floor)
    found = []
    for (i, name, colour, x, y), height in zip(ordered, heights, strict=True):
        found.append(
            f'<g class="c{colour}" data-series="{i}">'
            f'<polyline class="leader" points="{x + 5:.1f},{y:.1f} {edge + 4:.1f},{height:.1f} '
            f'{edge + 8:.1f},{height:.1f}"/>'
            f'<text class="end" x="{edge + 11:.1f}" y="{height + 4:.1f}">{escape(name)}</text></g>'
        )
    return found


def spread(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Rising places moved as little as this way allows until neighbours are a gap apart, inside low and high."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else max(place, low))
    over = moved[-1] - high if moved else 0.0
    if over > 0:
        moved[-1] = high
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    return moved
