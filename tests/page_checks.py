"""A page of ours as a parser sees it."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "img", "br", "line", "circle", "polyline"}


class Checked(HTMLParser):
    """Tags that close in order, and what a test asks about."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.loads: list[str] = []
        self.headings: list[int] = []
        self.images: list[dict[str, str | None]] = []
        self.scripts = 0
        self.words: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"{tag} says an attribute twice: {attrs}"
        if tag not in VOID:
            self.open.append(tag)
        self.ids += [x for x in [found.get("id")] if x]
        self.refers += (found.get("aria-labelledby") or "").split()
        self.loads += [x for x in (found.get("src"), found.get("href")) if x]
        self.refers += [x[1:] for x in [found.get("href")] if x and x.startswith("#")]
        self.scripts += tag == "script"
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag in ("img", "svg"):
            self.images.append(found)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open, f"</{tag}> closes nothing"
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)
