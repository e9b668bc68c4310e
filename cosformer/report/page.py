"""The page: its head, its sections in order, its style and script, all in one file."""

from html import escape
from importlib import resources
from pathlib import Path

from cosformer.bench.report import write_whole
from cosformer.report.maps import maps_section
from cosformer.report.reading import Run, read_run
from cosformer.report.sections import (
    comparison,
    curves,
    environment,
    headline,
    numbers,
    samples,
    settings,
    speed,
    state,
)
from cosformer.version import __version__

NAME = "report.html"


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Writes the report of a run, whole or not at all; where it lies."""
    out = out or folder / NAME
    write_whole(out, report_page(read_run(folder)).encode("utf-8", "replace"))
    return out


def report_page(run: Run) -> str:
    found = [
        ("numbers", "Key numbers", numbers(run) + comparison(run)),
        ("curves", "Learning curves", curves(run)),
        ("samples", "What it writes", samples(run)),
        ("maps", "What it attends to", maps_section(run)),
        ("speed", "Speed and memory against softmax", speed(run)),
        ("settings", "Settings", settings(run)),
        ("environment", "Data and machine", environment(run)),
    ]
    parts = [(name, title, body) for name, title, body in found if body]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in parts)
    sections = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(title)}</h2>'
        f"{body}</section>"
        for name, title, body in parts
    )
    title = f"{run.name}: report of a run"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#numbers">Skip to the numbers</a>\n'
        f'<header><div><p class="kicker">cosformer · report of a run</p><h1>{escape(run.name)}</h1>'
        f'<p class="lead">{headline(run)}</p>{state(run)}</div>'
        '<button id="theme" type="button" aria-live="polite" hidden>Theme: system</button></header>\n'
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{sections}\n</main>\n'
        f"<footer><p>Made by cosformer {__version__} from the files of the run. This page loads nothing."
        f"</p></footer>\n<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return (resources.files("cosformer.report") / name).read_text(encoding="utf-8")
