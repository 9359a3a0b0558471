# SPDX-License-Identifier: GPL-2.0-only
"""Screenshots of a result's page, from its top to the end of the first plot, in light and dark.

A browser shows the page as a reader's does, 1280 pixels wide. Chromium is found by its Debian name.
"""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from PIL import Image

from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.report import plots

WIDTH, HEIGHT = 1280, 1400
"""Of the window; a picture is higher where the first plot is below."""
MARGIN = 20
"""Pixels below the plot."""
COLOURS = 256
"""As many as a PNG file can have in a byte for each pixel."""
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
  told.id = "looks";
  const plot = document.querySelector("figure");
  const plotted = plot ? plot.getBoundingClientRect().bottom : 0;
  told.textContent = JSON.stringify({wide, plotted});
  document.body.append(told);
});
</script>
"""


@dataclass(frozen=True)
class Looks:
    """How a browser lays a page out: what is too wide, and where the first plot ends, in pixels.

    ``wide`` has the first words of what is wider than its place, so that a reader has to scroll
    sideways. What is folded away is not looked at. ``plotted`` is 0 where there is no plot.
    """

    wide: list[str]
    plotted: float


def browse(page: Path, *arguments: str, height: int = HEIGHT) -> str:
    """Have the browser open a page; return what it prints. Raises LightsleepError."""
    host.need("chromium", packages={"chromium": "chromium"})
    with tempfile.TemporaryDirectory() as profile:
        argv = [
            *("chromium", "--headless", "--no-sandbox", "--disable-gpu"),
            *(f"--user-data-dir={profile}", f"--window-size={WIDTH},{height}"),
            *arguments,
            page.absolute().as_uri(),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=ENOUGH_S, check=False)
    if done.returncode:
        raise LightsleepError(f"chromium failed on {page}: {done.stderr[-500:]}")
    return done.stdout


def screenshot(page: Path, scheme: str, picture: Path, height: int) -> None:
    """Write what a browser shows of the top of a page. Raises LightsleepError."""
    with tempfile.TemporaryDirectory() as scratch:
        shot = Path(scratch) / "shot.png"
        prefers = f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}"
        browse(page, "--hide-scrollbars", prefers, f"--screenshot={shot}", height=height)
        if not shot.exists():
            raise LightsleepError(f"chromium made no screenshot of {page}")
        quantized(Image.open(shot).convert("RGB")).save(picture, optimize=True)


def quantized(picture: Image.Image) -> Image.Image:
    """Return an RGB picture in few colours. Those of arms stay as they are, however few pixels.

    A choice of colours by their pixels alone drops those of the swatches.
    """
    of_arms = [bytes.fromhex(x[1:]) for colours in plots.COLOURS.values() for x in colours]
    others = COLOURS - len(of_arms)
    common = (picture.quantize(others).getpalette() or [])[: 3 * others]
    palette = np.array([*b"".join(of_arms), *common], np.int32).reshape(-1, 3)
    pixels = np.asarray(picture, np.int32)
    packed = (pixels[..., 0] << 16) + (pixels[..., 1] << 8) + pixels[..., 2]
    there, places = np.unique(packed, return_inverse=True)
    each = np.stack([there >> 16, there >> 8 & 255, there & 255], axis=1)
    nearest = ((each[:, None] - palette) ** 2).sum(axis=2).argmin(axis=1).astype(np.uint8)
    found = Image.fromarray(nearest[places].reshape(packed.shape))
    found.putpalette(palette.astype(np.uint8).tobytes())
    return found


def looks_of(page: Path) -> Looks:
    """Return how a browser lays a page out. Raises LightsleepError."""
    with tempfile.TemporaryDirectory() as scratch:
        probed = Path(scratch) / "probed.html"
        probed.write_text(page.read_text() + PROBE)
        shown = browse(probed, "--dump-dom")
    found = re.search(r'<pre id="looks">(.*?)</pre>', shown, re.DOTALL)
    if not found:
        raise LightsleepError(f"chromium did not run the probe in {page}")
    return Looks(**json.loads(html.unescape(found[1])))


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
        looks = looks_of(page)
        if looks.wide:
            raise LightsleepError(f"{result} does not fit in {WIDTH} pixels: {looks.wide[0]}")
        height = max(HEIGHT, math.ceil(looks.plotted) + MARGIN)
        for scheme in SCHEMES:
            screenshot(page, scheme, folder / f"page-{scheme}.png", height)


if __name__ == "__main__":
    main()
