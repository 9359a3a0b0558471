# SPDX-License-Identifier: GPL-2.0-only
"""Compiled C files: what of them is in the cache is of the files that are there."""

import shutil
from pathlib import Path

import pytest

from lightsleep import compiled


def test_a_library_is_of_its_files_and_headers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And of the few kernel headers that stand in for the kernel's own."""
    shim = Path(shutil.copytree(compiled.SHIM, tmp_path / "shim"))
    monkeypatch.setattr(compiled, "SHIM", shim)
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    source = tmp_path / "own" / "answer.c"
    source.parent.mkdir()
    source.write_text(
        "#include <linux/types.h>\nu32 answer(void);\nu32 answer(void) { return 1; }\n"
    )
    made = [compiled.shared_library("answer", [source])]
    assert compiled.shared_library("answer", [source]) == made[0]
    for changed in (source, source.with_name("beside.h"), shim / "linux/types.h"):
        with changed.open("a") as file:
            file.write("/* another one */\n")
        made.append(compiled.shared_library("answer", [source]))
    assert len(set(made)) == len(made)
