# SPDX-License-Identifier: GPL-2.0-only
"""The pictures of a result's page: arms have the colours in them that they have in the page."""

from __future__ import annotations

import numpy as np
import pytest
from paths import ROOT
from PIL import Image
from programs_here import loaded

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.report.plots import COLOURS, colours_of

screens = loaded("scripts/page_screens.py")
SWATCH = 8
"""Pixels of a swatch that are all of one colour, in each direction."""


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def test_few_colours_are_enough_to_keep_those_of_arms() -> None:
    """Beside text and panels in many shades, which have nearly all of the pixels."""
    shades = np.random.default_rng(1).integers(0, 256, (600, 800, 1))
    pixels = np.repeat(shades, 3, axis=2)
    pixels[:, 400:, 1] = 255 - pixels[:, 400:, 1] // 8
    of_arms = [colour for colours in COLOURS.values() for colour in colours]
    swatches = {colour: 20 * n for n, colour in enumerate(of_arms)}
    for colour, at in swatches.items():
        pixels[at : at + SWATCH, :SWATCH] = rgb(colour)
    found = screens.quantized(Image.fromarray(pixels.astype(np.uint8)))
    assert found.mode == "P"
    shown = np.asarray(found.convert("RGB"))
    for colour, at in swatches.items():
        assert (shown[at : at + SWATCH, :SWATCH] == rgb(colour)).all(), colour
    assert np.abs(shown.astype(int) - pixels).mean() < 3


@pytest.mark.parametrize("scheme", screens.SCHEMES)
def test_the_pictures_of_the_page_have_the_colours_of_its_arms(scheme: str) -> None:
    folder = ROOT / "docs/results"
    picture = Image.open(folder / f"page-{scheme}.png").convert("RGB")
    there = {colour for _, colour in picture.getcolors(picture.width * picture.height) or []}
    result = load(folder / "idle-x86_64.json", FORMAT)
    colours = colours_of({arm: result.roles[arm] for arm in result.arms})
    lost = [arm for arm, colour in colours.items() if rgb(colour) not in there]
    assert not lost, "run make screens"
