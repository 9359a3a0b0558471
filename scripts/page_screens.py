# SPDX-License-Identifier: GPL-2.0-only
"""Screenshots of the page of a result, in light and dark.

A browser shows the page as a reader's does, 1280 pixels wide. Chromium is found by its Debian name.
"""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import click
from PIL import Image

from lightsleep.errors import LightsleepError
from lightsleep.lab import host

WIDTH, HEIGHT = 1280, 1400
COLOURS = 128
"""Are enough for text and plots, in a fourth of the bytes."""
SCHEMES = {"dark": 0, "light": 1}
"""Name of the picture -> what the browser calls the scheme that a reader prefers."""
ENOUGH_S = 120.0

PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement, wide = [];
  for (const each of document.body.querySelectorAll("*")) {
    if (each.closest("svg")) continue;
    const scrolls = getComputedStyle(each).overflowX !== "visible";
    if (each.getBoundingClientRect().right > root.clientWidth + 0.5
        || scrolls && each.scrollWidth > each.clientWidth)
      wide.push(each.tagName + ": " + each.textContent.trim().replace(/\\s+/g, " ").slice(0, 80));
  }
  const told = document.createElement("pre");
  told.id = "clipped";
  told.textContent = JSON.stringify(wide);
  document.body.append(told);
});
</script>
"""


def browse(page: Path, *arguments: str) -> str:
    """Have the browser open a page; return what it prints. Raises LightsleepError."""
    host.need("chromium", packages={"chromium": "chromium"})
    with tempfile.TemporaryDirectory() as profile:
        argv = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}"),
            *arguments,
            page.absolute().as_uri(),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ENOUGH_S, check=False)
    if done.returncode:
        raise LightsleepError(f"chromium failed on {page}: {done.stderr[-500:]}")
    return done.stdout


def screenshot(page: Path, scheme: str, picture: Path) -> None:
    """Write what a browser shows of the top of a page. Raises LightsleepError."""
    with tempfile.TemporaryDirectory() as scratch:
        shot = Path(scratch) / "shot.png"
        prefers = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
        browse(page, "--hide-scrollbars", prefers, f"--screenshot={shot}")
        if not shot.exists():
            raise LightsleepError(f"chromium made no screenshot of {page}")
        Image.open(shot).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def clipped(page: Path) -> list[str]:
    """Return what of a page is wider than its place, so that a reader has to scroll sideways.

    Each is told by the first words of its text. What is folded away is not looked at. Raises
    LightsleepError.
    """
    with tempfile.TemporaryDirectory() as scratch:
        probed = Path(scratch) / "probed.html"
        probed.write_text(page.read_text() + PROBE)
        shown = browse(probed, "--dump-dom")
    found = re.search(r'<pre id="clipped">(.*?)</pre>', shown, re.DOTALL)
    if not found:
        raise LightsleepError(f"chromium did not run the probe in {page}")
    return cast("list[str]", json.loads(html.unescape(found[1])))


@click.command()
@click.argument("result", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
def main(result: Path, folder: Path) -> None:
    """Write screenshots of the page of RESULT to FOLDER: page-light.png, page-dark.png.

    Fails where part of the page does not fit.
    """
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        words = ["report", result.name, "-o", str(page)]
        subprocess.run([sys.executable, "-m", "lightsleep", *words], cwd=result.parent, check=True)
        if wide := clipped(page):
            raise LightsleepError(f"{result} does not fit in {WIDTH} pixels: {wide[0]}")
        for scheme in SCHEMES:
            screenshot(page, scheme, folder / f"page-{scheme}.png")


if __name__ == "__main__":
    main()
