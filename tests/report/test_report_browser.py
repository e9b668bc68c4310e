"""The page in headless Chromium: no errors, nothing sticks out, colours that can be read, and it answers to a hand.

A copy of the page gets a script before its own, which listens for errors, and one after, which uses the page and writes
down what it saw; the browser then prints the page.
"""

import functools
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from made_run import make_run

from cosformer.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is installed")

LISTEN = """
window.seen = { errors: [] };
addEventListener("error", (e) => window.seen.errors.push(String(e.message)));
addEventListener("unhandledrejection", (e) => window.seen.errors.push(String(e.reason)));
for (const kind of ["error", "warn"]) console[kind] = (...words) => window.seen.errors.push(words.join(" "));
"""
USE = """
const seen = window.seen, wait = (ms) => new Promise((done) => setTimeout(done, ms));
const shown = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility === "visible";
const point = (e, kind, x, y) => {
  const box = e.getBoundingClientRect();
  const at = { clientX: box.left + box.width * x, clientY: box.top + box.height * y, bubbles: true };
  e.dispatchEvent(new PointerEvent(kind, at));
};
const channels = (colour) => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data];
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
    const svg = [...document.querySelectorAll("#chart-loss svg")].filter(shown);
    seen.charts = svg.length;
    seen.letters = Math.min(...[...document.querySelectorAll("svg text")].filter(shown)
      .map((t) => t.getBoundingClientRect().height));
    const tip = document.querySelector("#chart-loss .tip");
    seen.before = tip.hidden;
    point(svg[0], "pointermove", 0.5, 0.5);
    seen.hover = tip.textContent;
    const [box, plot] = [tip.getBoundingClientRect(), document.body.getBoundingClientRect()];
    seen.inside = box.left >= plot.left && box.right <= plot.right;
    point(svg[0], "pointerleave", 0.5, 0.5);
    seen.after = tip.hidden;
    svg[0].focus();
    for (let i = 0; i < 30; i += 1) svg[0].dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
    seen.keys = tip.textContent;
    svg[0].blur();
    const map = document.querySelector(".heads img");
    point(map, "pointermove", 0.01, 0.999);
    seen.map = document.querySelector(".readout").textContent;
    point(map, "pointermove", 0.999, 0.01);
    seen.future = document.querySelector(".readout").textContent;
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
})();
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    text = write_report(make_run(folder / "run")).read_text()
    assert text.count("<head>") == text.count("</body>") == 1
    text = text.replace("<head>", f"<head><script>{LISTEN}</script>").replace(
        "</body>", f"<script>{USE}</script></body>"
    )
    (folder / "used.html").write_text(text)
    return folder / "used.html"


@functools.cache
def used(page: Path, width: int, dark: bool) -> dict[str, Any]:
    assert BROWSER is not None
    flags = [
        "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},1200",
        "--virtual-time-budget=20000", "--enable-logging=stderr", "--no-first-run", "--disable-background-networking",
        f"--user-data-dir={page.parent}/profile-{width}-{dark}",
        f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom",
    ]  # fmt: skip
    done = subprocess.run([BROWSER, *flags, page.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(unescape(found[1])) | {"said": said}


VIEWS = [(400, False), (1_600, True)]


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_no_errors_and_nothing_sticks_out(page: Path, width: int, dark: bool) -> None:
    seen = used(page, width, dark)
    assert seen["errors"] == []
    assert seen["said"] == []
    assert seen["broken"] is None  # a sample's text did not run
    assert seen["width"] <= max(width, 500)  # some browsers open no narrower window
    assert seen["wide"] <= seen["width"]
    assert seen["out"] == []
    assert seen["charts"] == 1  # the wide one or the narrow one
    assert seen["letters"] >= 10


@pytest.mark.parametrize(("width", "dark"), VIEWS)
def test_both_themes_can_be_read(page: Path, width: int, dark: bool) -> None:
    themes = used(page, width, dark)["themes"]
    assert [theme["name"] for theme in themes] == ["Theme: system", "Theme: light", "Theme: dark"]
    system, light, night = (theme["page"] for theme in themes)
    assert system == (night if dark else light)
    assert min(light[:3]) > 200
    assert max(night[:3]) < 60
    for theme in themes:
        assert theme["worst"]["ratio"] >= 4.5, theme["worst"]


def test_pointing_at_a_curve_tells_its_numbers(page: Path) -> None:
    seen = used(page, 1_600, True)
    assert seen["before"]
    assert seen["hover"] == "step 18training 2.496held out 2.406 (at 20)"
    assert seen["inside"]
    assert seen["after"]
    assert seen["keys"].startswith("step 2training")


def test_pointing_at_a_map_names_both_tokens(page: Path) -> None:
    seen = used(page, 400, False)
    assert re.fullmatch(r"layer 0, head 0: “.+” \(\d+\) looks at “d” \(0\), \d+ away: .+", seen["map"]), seen["map"]
    assert seen["future"].endswith("not at all")
