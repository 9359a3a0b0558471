# SPDX-License-Identifier: GPL-2.0-only
"""What is quick to read in our sources. Checkpatch itself needs a kernel's."""

import re
from pathlib import Path

from lightsleep.sources import KERNEL

COLUMNS = 100
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def test_no_line_is_too_long() -> None:
    sources = sorted(KERNEL.rglob("*.[ch]"))
    assert len(sources) > 50
    assert not [x for source in sources for x in _long_lines(source)]


def test_no_wait_is_as_long_as_the_command_line_says() -> None:
    """lpj= sets loops_per_jiffy, by which a wait of 1 ms may then last for any time."""
    code = {x: COMMENT.sub("", x.read_text()) for x in KERNEL.rglob("*.[ch]")}
    for patch in KERNEL.rglob("*.patch"):
        added = [x for x in patch.read_text().splitlines() if x.startswith("+")]
        code[patch] = "\n".join(added)
    assert not [x for x, text in code.items() if "loops_per_jiffy" in text]


def _long_lines(source: Path) -> list[str]:
    """List the lines beyond COLUMNS as file:line; messages stay whole, so that grep finds them."""
    lines = enumerate(source.read_text().splitlines(), 1)
    return [f"{source}:{n}" for n, x in lines if len(x.expandtabs()) > COLUMNS and '"' not in x]
