# SPDX-License-Identifier: GPL-2.0-only
"""What a command that was killed together with its restorer leaves behind, and what refuses."""

import json
from pathlib import Path

import pytest
from scan_trees import plant

from lightsleep.settings import journalled, restorer
from lightsleep.settings.restorer_process import RestorerProcess


def leave(root: Path, verb: str, *changes: dict[str, str | None]) -> None:
    """Leave the journal of a killed command; the changes are the caller's."""
    plant(root, f"{journalled.RUN_DIR}/lock:")
    lines = [{"boot_id": restorer.boot_id(), "verb": verb, "pid": "1"}, *changes]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (root / journalled.RUN_DIR / "journal").write_text(text)


def knob(path: Path, old: str, new: str) -> dict[str, str | None]:
    """Change a knob, and return the line that tells of it."""
    path.write_text(f"{new}\n")
    return {"knob": str(path), "old": old, "new": new}


def refuse_to_set_back(monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the end of each session tell of a knob that refuses; return what it tells."""
    refused, end = "cannot set /sys/knob to 0 again: Device or resource busy", RestorerProcess.end

    def ended(process: RestorerProcess) -> tuple[list[str], list[str]]:
        notes, others = end(process)
        return notes, [*others, refused]

    monkeypatch.setattr(RestorerProcess, "end", ended)
    return refused
