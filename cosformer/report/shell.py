"""What every page of ours shares: head, theme button, sections with links to them, style and script, in one file."""

from collections.abc import Sequence
from html import escape
from importlib import resources

from cosformer.version import __version__


def shell(
    *, title: str, kicker: str, heading: str, lead: str, note: str, sections: Sequence[tuple[str, str, str]],
    source: str,
) -> str:  # fmt: skip
    """A page of (identity, title, HTML) sections, those without HTML left out. lead and note are HTML, too."""
    parts = [(name, said, body) for name, said, body in sections if body]
    links = "".join(f'<a href="#{name}">{escape(said)}</a>' for name, said, _ in parts)
    shown = "".join(
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{escape(said)}</h2>{body}</section>'
        for name, said, body in parts
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_file('page.css')}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#{parts[0][0]}">Skip to the numbers</a>\n'
        f'<header><div><p class="kicker">{escape(kicker)}</p><h1>{escape(heading)}</h1>'
        f'<p class="lead">{lead}</p>{note}</div>'
        '<button id="theme" type="button" aria-live="polite" hidden>Theme: system</button></header>\n'
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{shown}\n</main>\n'
        f"<footer><p>Made by cosformer {__version__} from {escape(source)}. This page loads nothing."
        f"</p></footer>\n<script>\n{_file('page.js')}</script>\n</body>\n</html>\n"
    )


def _file(name: str) -> str:
    return (resources.files("cosformer.report") / name).read_text(encoding="utf-8")
