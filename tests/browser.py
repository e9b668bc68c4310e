"""A page in headless Chromium: used by a script of the test, and what it saw.

A copy of the page gets a script before its own, which listens for errors, and one after, which uses the page and writes
down what it saw; the browser then prints the page.
"""

import functools
import json
import re
import shutil
import subprocess
import tempfile
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")

LISTEN = """
window.seen = { errors: [] };
addEventListener("error", (e) => window.seen.errors.push(String(e.message)));
addEventListener("unhandledrejection", (e) => window.seen.errors.push(String(e.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => window.seen.errors.push(words.join(" "));
"""
# What a test does with a page goes between these two: it has `seen` to fill, `shown`, `point` and `wait`
START = """
const seen = window.seen, wait = (ms) => new Promise((done) => setTimeout(done, ms));
const shown = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility === "visible";
const point = (e, kind, x, y) => {
  const box = e.getBoundingClientRect();
  const at = { clientX: box.left + box.width * x, clientY: box.top + box.height * y, bubbles: true };
  e.dispatchEvent(new PointerEvent(kind, at));
};
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const known = new Map();
const channels = (colour) => {
  if (!known.has(colour)) {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    known.set(colour, [...canvas.getImageData(0, 0, 1, 1).data]);
  }
  return known.get(colour);
};
const light = (rgb) => {
  const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const worst = () => {
  let least = { ratio: 99 };
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || !shown(e) || ["SCRIPT", "STYLE"].includes(e.tagName)) continue;
    const style = getComputedStyle(e);
    let ground = e, behind = [0, 0, 0, 0];
    while (behind[3] === 0 && ground) {
      behind = channels(getComputedStyle(ground).backgroundColor);
      ground = ground.parentElement;
    }
    const [a, b] = [light(channels(e instanceof SVGElement ? style.fill : style.color)), light(behind)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least.ratio) least = { ratio, tag: e.tagName, text: e.textContent.slice(0, 40) };
  }
  return least;
};
(async () => {
  try {
    await Promise.all([...document.images].map((i) => i.decode()));
    seen.width = innerWidth;
    seen.tall = document.documentElement.scrollHeight;
    seen.wide = document.documentElement.scrollWidth;
    seen.out = [...document.querySelectorAll("main *, header *")]
      .filter((e) => shown(e) && !e.closest(".scrolls, svg, .unseen"))
      .filter((e) => e.getBoundingClientRect().right > innerWidth + 1)
      .map((e) => e.tagName + "." + e.className);
    seen.crowded = [];
    for (const svg of [...document.querySelectorAll("svg")].filter(shown)) {
      const boxes = [...svg.querySelectorAll("text.tick")].map((t) => t.getBoundingClientRect());
      if (boxes.some((a, i) => boxes.some((b, j) => i < j && a.left < b.right && b.left < a.right
        && a.top < b.bottom - 3 && b.top < a.bottom - 3))) seen.crowded.push(svg.getAttribute("aria-label"));
    }
    seen.captions = [...document.querySelectorAll("caption span")]
      .filter((e) => e.getBoundingClientRect().right > innerWidth).map((e) => e.textContent);
    seen.letters = Math.min(...[...document.querySelectorAll("svg text")].filter(shown)
      .map((t) => t.getBoundingClientRect().height));
"""
END = """
    const button = document.getElementById("theme");
    seen.themes = [];
    for (let i = 0; i < 3; i += 1) {
      const ground = channels(getComputedStyle(document.body).backgroundColor);
      seen.themes.push({ name: button.textContent, page: ground, worst: worst() });
      button.click();
      await wait(20);
    }
    seen.broken = window.broken ?? null;
  } catch (error) { seen.errors.push(String(error && error.stack)); }
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = JSON.stringify(seen);
  document.body.append(out);
  if (parent !== window) parent.postMessage(out.textContent, "*");
})();
"""
FRAME = """<!DOCTYPE html><meta name="color-scheme" content="light dark">
<script>addEventListener("message", (e) => {
  const out = document.createElement("pre");
  out.id = "seen";
  out.textContent = e.data;
  document.body.append(out);
});</script>
<iframe srcdoc="PAGE" width="WIDTH" height="1200" style="border: 0"></iframe>"""
"""Browsers open no window narrower than 500 pixels; a frame may be. With its page inside, it keeps the same time."""
NARROWEST = 500


def usable(page: Path, use: str) -> Path:
    """A copy of the page beside it that uses itself."""
    text = page.read_text()
    assert text.count("<head>") == text.count("</body>") == 1
    text = text.replace("<head>", f"<head><script>{LISTEN}</script>")
    text = text.replace("</body>", f"<script>{START}{use}{END}</script></body>")
    copy = page.with_name(f"used-{page.name}")
    copy.write_text(text)
    return copy


@functools.cache
def used(page: Path, width: int, dark: bool) -> dict[str, Any]:
    assert BROWSER is not None
    if width < NARROWEST:
        frame = page.with_name(f"{width}-{page.name}")
        frame.write_text(FRAME.replace("WIDTH", str(width)).replace("PAGE", escape(page.read_text(), quote=True)))
        page = frame
    flags = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
        f"--window-size={max(width, NARROWEST)},1200",
        "--virtual-time-budget=20000", "--enable-logging=stderr", "--no-first-run", "--disable-background-networking",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom",
    ]  # fmt: skip
    for _ in range(3):  # on a busy machine the browser's own time may be over before a picture is decoded
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:  # new: a visit cut short left a theme
            command = [BROWSER, *flags, f"--user-data-dir={profile}", page.as_uri()]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
        if found is not None:
            return json.loads(unescape(found[1])) | {"said": said}
    raise AssertionError(f"the page did not answer: {done.stdout[-2000:]}{done.stderr[-2000:]}")


VIEWS = [(400, False), (1_600, True)]


def check_whole(seen: dict[str, Any], width: int) -> None:
    """No errors, nothing beyond the edge, letters that can be read."""
    assert seen["errors"] == []
    assert seen["said"] == []
    assert seen["broken"] is None  # a text of the page did not run
    assert seen["width"] == width
    assert seen["wide"] <= seen["width"]
    assert seen["out"] == []
    assert seen["letters"] >= 10
    assert seen["crowded"] == []  # numbers of an axis stand apart
    assert seen["captions"] == []  # a table may be wider than the page, what it is about is not


def check_themes(seen: dict[str, Any], dark: bool) -> None:
    """The system's choice, light and dark, each with contrast."""
    themes = seen["themes"]
    assert [theme["name"] for theme in themes] == ["Theme: system", "Theme: light", "Theme: dark"]
    system, light, night = (theme["page"] for theme in themes)
    assert system == (night if dark else light)
    assert min(light[:3]) > 200
    assert max(night[:3]) < 60
    for theme in themes:
        assert theme["worst"]["ratio"] >= 4.5, theme["worst"]
