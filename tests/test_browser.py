"""What a page leaves in the browser does not reach the next visit."""

from pathlib import Path

from browser import needs_browser, usable, used

PAGE = """<!DOCTYPE html><html><head><title>Visits</title></head><body><button id="theme"></button></body></html>"""
COUNT = """
    seen.visits = Number(localStorage.getItem("visits")) + 1;
    localStorage.setItem("visits", seen.visits);
"""


@needs_browser
def test_every_visit_is_the_first(tmp_path: Path) -> None:
    """A visit cut short by its time had clicked the theme once; the next found another theme than the system's."""
    page = tmp_path / "page.html"
    page.write_text(PAGE)
    page = usable(page, COUNT)
    for _ in range(2):
        used.cache_clear()
        seen = used(page, 1_600, False)
        assert seen["errors"] == []
        assert seen["visits"] == 1
