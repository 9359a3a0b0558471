# SPDX-License-Identifier: GPL-2.0-only
"""What a lint rule is, and what it finds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from lightsleep.scan.model import Scan

Severity = Literal["warning", "note"]


@dataclass(frozen=True)
class Finding:
    """One rule that fired: ``what`` was seen here, ``why`` it matters, what ``fix`` there is."""

    id: str
    severity: Severity
    what: str
    why: str
    fix: str


@dataclass(frozen=True)
class Rule:
    """``check`` returns what it saw, or None where all is well."""

    id: str
    severity: Severity
    check: Callable[[Scan], str | None]
    why: str
    fix: str
