"""A table once, shown twice: as HTML that sorts by its headings, and as Markdown for the documentation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape


@dataclass(frozen=True, slots=True)
class Entry:
    text: str
    value: float | None = None
    """To sort by; None comes last, whichever way is sorted."""
    note: str = ""
    """Smaller, beside the text."""
    why: str = ""
    """Shown under the pointer: the long form of a short text."""
    best: bool = False


@dataclass(kw_only=True, slots=True)
class Table:
    identity: str
    caption: str
    columns: Sequence[str]
    """The first names the rows."""
    rows: list[list[Entry]] = field(default_factory=list)
    words: Sequence[int] = ()
    """Columns of words, which sort by the alphabet; the others hold numbers."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{self.caption}: a row of {len(row)} under {len(self.columns)} headings")


def html(table: Table) -> str:
    """It stands without JavaScript, which makes the headings sort."""
    words = {0, *table.words}
    heads = "".join(
        f'<th scope="col" aria-sort="none" data-words="{int(i in words)}"'
        f'{"" if i in words else " class=number"}><button type="button">{escape(name)}</button></th>'
        for i, name in enumerate(table.columns)
    )
    body = "".join(
        f"<tr>{''.join(_html_cell(entry, i, i in words) for i, entry in enumerate(row))}</tr>" for row in table.rows
    )
    return (
        f'<div class="scrolls" tabindex="0" role="region" aria-labelledby="{table.identity}-caption">'
        f'<table class="sorts" id="{table.identity}">'
        f'<caption id="{table.identity}-caption"><span>{escape(table.caption)}</span></caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _html_cell(entry: Entry, column: int, words: bool) -> str:
    tag = "th" if column == 0 else "td"
    marks = {"number": not words, "best": entry.best, "lacks": not words and entry.value is None}
    classes = " ".join(name for name, on in marks.items() if on)
    sort = "" if entry.value is None or math.isnan(entry.value) else f' data-value="{_plain(entry.value)}"'
    why = f' title="{escape(entry.why, quote=True)}"' if entry.why else ""
    scope = ' scope="row"' if column == 0 else ""
    note = f' <span class="quiet">{escape(entry.note)}</span>' if entry.note else ""
    named = f' class="{classes}"' if classes else ""
    return f"<{tag}{scope}{named}{sort}{why}>{escape(entry.text)}{note}</{tag}>"


def _plain(value: float) -> str:
    """As JavaScript reads it."""
    return str(value).replace("inf", "Infinity")


def markdown(table: Table) -> str:
    words = {0, *table.words}
    lines = [
        "| " + " | ".join(_cell(name) for name in table.columns) + " |",
        "|" + "|".join("---" if i in words else "---:" for i in range(len(table.columns))) + "|",
    ]
    for row in table.rows:
        lines.append("| " + " | ".join(_markdown_cell(entry) for entry in row) + " |")
    return f"{_line(table.caption)}\n\n" + "\n".join(lines) + "\n"


def _markdown_cell(entry: Entry) -> str:
    text = f"**{_cell(entry.text)}**" if entry.best else _cell(entry.text)
    return f"{text} ({_cell(entry.note)})" if entry.note else text


def _cell(text: str) -> str:
    return _line(text).replace("|", "\\|")


def _line(text: str) -> str:
    return " ".join(text.split())
