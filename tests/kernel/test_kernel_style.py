# SPDX-License-Identifier: GPL-2.0-only
"""What is quick to read of checkpatch's rules: itself, it needs a kernel's sources."""

from pathlib import Path

from lightsleep.sources import KERNEL

COLUMNS = 100


def test_no_line_is_too_long() -> None:
    sources = sorted(KERNEL.rglob("*.[ch]"))
    assert len(sources) > 50
    assert not [x for source in sources for x in _long_lines(source)]


def _long_lines(source: Path) -> list[str]:
    """List the lines beyond COLUMNS as file:line; messages stay whole, so that grep finds them."""
    lines = enumerate(source.read_text().splitlines(), 1)
    return [f"{source}:{n}" for n, x in lines if len(x.expandtabs()) > COLUMNS and '"' not in x]
