# SPDX-License-Identifier: GPL-2.0-only
"""Screenshots of the page of a result, in light and dark: page_screens.py RESULT FOLDER.

A browser shows the page as a reader's does, 1280 pixels wide. Chromium is found by its Debian name.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from lightsleep.errors import LightsleepError
from lightsleep.lab import host

WIDTH, HEIGHT = 1280, 1400
COLOURS = 128
"""Are enough for text and plots, in a fourth of the bytes."""
SCHEMES = {"dark": 0, "light": 1}
"""Name of the picture -> what the browser calls the scheme that a reader prefers."""
ENOUGH_S = 120.0


def screenshot(page: Path, scheme: str, picture: Path) -> None:
    """Write what a browser shows of the top of a page. Raises LightsleepError."""
    host.need("chromium", packages={"chromium": "chromium"})
    with tempfile.TemporaryDirectory() as scratch:
        shot = Path(scratch) / "shot.png"
        done = subprocess.run(
            [
                *("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                f"--blink-settings=preferredColorScheme={SCHEMES[scheme]}",
                f"--user-data-dir={scratch}",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--screenshot={shot}",
                page.absolute().as_uri(),
            ],
            capture_output=True,
            text=True,
            timeout=ENOUGH_S,
            check=False,
        )
        if not shot.exists():
            raise LightsleepError(f"chromium made no screenshot of {page}: {done.stderr[-500:]}")
        Image.open(shot).convert("RGB").quantize(COLOURS).save(picture, optimize=True)


def main(result: Path, folder: Path) -> None:
    """Render a result's page, and write its screenshots: page-light.png, page-dark.png."""
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "page.html"
        words = ["report", result.name, "-o", str(page)]
        subprocess.run([sys.executable, "-m", "lightsleep", *words], cwd=result.parent, check=True)
        for scheme in SCHEMES:
            screenshot(page, scheme, folder / f"page-{scheme}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
