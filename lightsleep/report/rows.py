# SPDX-License-Identifier: GPL-2.0-only
"""JSON objects of any shape as rows of a table: a name and a text."""

from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

Rows = list[tuple[str, str]]


def flat(value: dict[str, Any], prefix: str = "", said_elsewhere: Set[str] = frozenset()) -> Rows:
    """Return what is known as rows, nested keys joined, but for the keys ``said_elsewhere``."""
    rows: Rows = []
    for key, item in value.items():
        name = f"{prefix} {key.replace('_', ' ')}".lstrip()
        if key in said_elsewhere:
            continue
        rows += flat(item, name) if isinstance(item, dict) else [(name, text_of(item))]
    return rows


def text_of(value: Any) -> str:
    """Return a value as a reader wants to see it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
