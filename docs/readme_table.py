"""Writes the table of README.md from the result file its marker names: `python docs/readme_table.py`.

A test runs `render` and compares, so the table cannot drift from the file.
"""

import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOFTMAX, OURS = "softmax (SDPA), causal", "cosformer, causal"
BLOCK = re.compile(r"(?P<rows>(?:\|[^\n]*\n)*)<!-- table: (?P<source>\S+) -->\n")


def render(source: Path) -> str:
    def ms(times: dict, name: str) -> str:
        return f"{times[name]['ms']:,.1f}" if name in times else "–"

    def ratio(value: float | None) -> str:
        return "–" if value is None else f"**{value:.1f}×**"

    lines = []
    for row in json.loads(source.read_text())["rows"]:
        forward, training = row["forward_ms"], row["forward_backward_ms"]
        cells = [
            f"{row['length']:,}", ms(forward, SOFTMAX), ms(forward, OURS), ratio(row["speedup_forward"]),
            ms(training, SOFTMAX), ms(training, OURS), ratio(row["speedup_forward_backward"]),
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def rewrite(text: str) -> str:
    """The text with every marked table made anew; its two heading lines stay."""

    def table(match: re.Match[str]) -> str:
        heading = "".join(match["rows"].splitlines(keepends=True)[:2])
        return f"{heading}{render(ROOT / match['source'])}<!-- table: {match['source']} -->\n"

    return BLOCK.sub(table, text)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(rewrite(readme.read_text()))
