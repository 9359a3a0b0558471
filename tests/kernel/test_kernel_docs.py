# SPDX-License-Identifier: GPL-2.0-only
"""The kernel's own documentation build renders our files without a warning."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lightsleep.lab import host
from lightsleep.lab.kernels.source import kernel_source
from lightsleep.sources import KERNEL

pytestmark = [pytest.mark.build, pytest.mark.more]

OURS = KERNEL / "Documentation"
NEEDED = ("Documentation", "include/uapi", "scripts", "tools/net/ynl", "arch/x86/Makefile")
WARNING = re.compile(r"WARNING|ERROR|[Ww]arning:|[Ee]rror:")
NO_DOT = "dot(1) not found"
"""No page of ours has a figure."""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel's documentation with a folder of our pages, and no ABI but ours."""
    host.need("sphinx-build", packages={"sphinx-build": "python3-sphinx"})
    tree = tmp_path_factory.mktemp("docs") / "linux"
    tree.mkdir()
    archive = kernel_source()
    wanted = [f"*/{x}" for x in NEEDED]
    unpack = ["tar", "-xJf", str(archive), "-C", str(tree), "--strip-components=1", "--wildcards"]
    host.run([*unpack, "--no-wildcards-match-slash", "*/Makefile", *wanted], "unpacking")
    abi = tree / "Documentation/ABI/testing"
    shutil.rmtree(abi)
    shutil.copytree(OURS / "ABI/testing", abi)
    pages = sorted((OURS / "admin-guide").rglob("*.rst"))
    folder = tree / "Documentation/ours"
    folder.mkdir()
    for page in pages:
        shutil.copy(page, folder)
    (folder / "abi.rst").write_text("ABI\n===\n\n.. kernel-abi:: ABI/testing\n   :rst:\n")
    names = "".join(f"   {x}\n" for x in ("abi", *(page.stem for page in pages)))
    (folder / "index.rst").write_text(f"Ours\n====\n\n.. toctree::\n\n{names}")
    return tree


def htmldocs(tree: Path) -> list[str]:
    """Build the pages and return the lines of warnings."""
    make = ["make", "-C", str(tree), "SPHINXDIRS=ours", "htmldocs"]
    done = subprocess.run(
        make, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(done.stdout)
    assert done.returncode == 0
    return [x for x in done.stdout.splitlines() if WARNING.search(x) and NO_DOT not in x]


def test_pages_render_without_a_warning(tree: Path) -> None:
    assert htmldocs(tree) == []
    html = tree / "Documentation/output/ours"
    assert "lightsleep/deliberate_halts" in (html / "abi.html").read_text()
    assert "wait_weight" in (html / "cpuidle-lightsleep.html").read_text()


def test_the_abi_is_valid(tree: Path) -> None:
    validate = ["perl", f"{tree}/scripts/get_abi.pl", "validate", "--dir", f"{OURS}/ABI"]
    done = subprocess.run(validate, capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""


def test_a_mistake_is_a_warning(tree: Path) -> None:
    (tree / "Documentation/ours/bad.rst").write_text("Bad\n==\n\nA ``literal.\n")
    index = tree / "Documentation/ours/index.rst"
    index.write_text(index.read_text() + "   bad\n")
    assert any("bad.rst" in line for line in htmldocs(tree))
