# SPDX-License-Identifier: GPL-2.0-only
"""The kernel part, read by the kernel's own critics: compiler with W=1, sparse, checkpatch."""

import subprocess
from pathlib import Path

import pytest

import lightsleep
from lightsleep.lab.config import ARCHES, KERNELS
from lightsleep.lab.modules import SOURCE, build_modules
from lightsleep.lab.roots import kernel_tree
from lightsleep.lab.source import style_tools

pytestmark = pytest.mark.build

ARCH = ARCHES["x86_64"]
SOURCES = sorted(str(x) for x in SOURCE.rglob("*.[ch]") if not x.name.endswith(".mod.c"))


@pytest.mark.parametrize("kernel", KERNELS)
def test_compiler_and_sparse_have_nothing_to_say(kernel: str) -> None:
    tree = kernel_tree(ARCH, KERNELS[kernel])
    variables = {"LIGHTSLEEP_TESTS": "1", "W": "1", "C": "2"}
    modules = build_modules(ARCH, tree, SOURCE, variables)
    log = (modules[0].parent / "build.log").read_text()
    assert "CHECK" in log, "sparse did not run"
    ours = [x for x in log.splitlines() if "warning:" in x and "linux-headers" not in x]
    assert not ours


def test_checkpatch_has_nothing_to_say() -> None:
    done = subprocess.run(
        ["perl", str(style_tools() / "checkpatch.pl"), "--no-tree", "--strict", "--terse", "--show-types", "-f"]
        + SOURCES,
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [x for x in done.stdout.splitlines() if not x.startswith("total:")]
    assert not complaints, "\n".join(complaints)
    assert done.stdout.count("total:") == len(SOURCES), done.stderr


def test_dkms_names_what_is_built() -> None:
    conf = dict(
        line.split("=", 1)
        for line in (SOURCE / "dkms.conf").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert conf["PACKAGE_VERSION"].strip('"') == lightsleep.__version__
    named = conf["BUILT_MODULE_NAME[0]"].strip('"')
    assert f"obj-m += {named}.o" in Path(SOURCE / "Kbuild").read_text()
