# SPDX-License-Identifier: GPL-2.0-only
"""The kernel part, read by the kernel's own critics: compiler with W=1, sparse, checkpatch."""

import re
import subprocess
from pathlib import Path

import pytest
from checkers import CHECK_TOOLS, style_tools
from kernels import EACH_KERNEL, seldom

from lightsleep.lab.kernels.build import any_tree
from lightsleep.lab.kernels.config import ARCHES, KERNELS
from lightsleep.lab.kernels.modules import build_modules, project_modules
from lightsleep.lab.kernels.roots import kernel_tree
from lightsleep.sources import KERNEL

pytestmark = pytest.mark.build

SOURCES = sorted(str(x) for x in KERNEL.rglob("*.[ch]") if not x.name.endswith(".mod.c"))


# One kernel of each further architecture: booting builds for the others.
BUILDS = [seldom("x86_64", x) for x in KERNELS] + [("aarch64", "6.12"), ("ppc64le", "6.12")]
# It has headers of ours, without what only modules need, and these are to use their own.
BUILDS += [pytest.param(x, "6.12-series", marks=pytest.mark.more) for x in ("x86_64", "ppc64le")]
# That of the backports refuses distributions' sparse: "not available or not up to date".
SPARSE = [x for x in EACH_KERNEL if x.values in (("6.1",), ("6.12",))]


def complaints(modules: list[Path]) -> tuple[str, list[str]]:
    """Return the log of the build of modules, and its warnings about our files."""
    log = (modules[0].parent / "build.log").read_text()
    warnings = [x for x in log.splitlines() if "warning:" in x and "linux-headers" not in x]
    return log, warnings


@pytest.mark.parametrize(("arch", "kernel"), BUILDS)
def test_the_compiler_has_nothing_to_say(arch: str, kernel: str) -> None:
    row = ARCHES[arch]
    tree = any_tree(row, row.built.get(kernel) or row.kernels[kernel])
    log, warnings = complaints(project_modules(row, tree))
    assert "cpuidle-lightsleep.o" in log
    assert not warnings


@pytest.mark.parametrize("kernel", SPARSE)
def test_sparse_has_nothing_to_say(kernel: str) -> None:
    row = ARCHES["x86_64"]
    tree = kernel_tree(row, row.kernels[kernel], CHECK_TOOLS)
    given = {"LIGHTSLEEP_TESTS": "1", "C": "2"}
    log, warnings = complaints(build_modules(row, tree, KERNEL, given))
    of_modules = re.findall(r"(drivers/\S+)\.o", (KERNEL / "Kbuild").read_text())
    assert len(of_modules) > 10
    for source in of_modules:
        assert f"CHECK   /mnt/{source}.c" in log, "sparse did not run"
    assert not warnings


def test_checkpatch_has_nothing_to_say() -> None:
    checker = style_tools() / "checkpatch.pl"
    done = subprocess.run(
        ["perl", checker, "--no-tree", "--strict", "--show-types", "-f", *SOURCES],
        capture_output=True,
        text=True,
        check=False,
    )
    clean = re.compile(
        r"total: 0 errors, 0 warnings(, 0 checks)?, |\S+ has no obvious style problems.*"
    )
    complaints = [line for line in done.stdout.splitlines() if not clean.match(line)]
    assert done.stdout.count("has no obvious style problems") == len(SOURCES), "\n".join(complaints)
