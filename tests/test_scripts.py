# SPDX-License-Identifier: GPL-2.0-only
"""The scripts: what `make man` writes."""

import re
import subprocess
import sys
from pathlib import Path

from lightsleep.cli import VERBS
from lightsleep.lab.cli import lab

SCRIPTS = Path(__file__).parents[1] / "scripts"


def test_no_name_of_a_man_page_is_cut(tmp_path: Path) -> None:
    subprocess.run([sys.executable, SCRIPTS / "man_pages.py", tmp_path], check=True)
    pages = {page.stem: page.read_text() for page in tmp_path.glob("*.1")}
    assert pages.keys() == {"lightsleep", *(f"lightsleep-{verb}" for verb in VERBS)} | {
        f"lightsleep-lab-{name}" for name in lab.commands
    }
    for page in pages.values():
        (name,) = re.findall(r"^\.SH NAME\n(.*)$", page, re.MULTILINE)
        assert re.fullmatch(r"[a-z\\-]+ \\- .*[^.]\.?", name)
