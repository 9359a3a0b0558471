# SPDX-License-Identifier: GPL-2.0-only
"""The modules build for every kernel whose headers Debian packages, or it is excluded by name."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from lightsleep.lab.kernels.config import ARCHES, Arch, Kernel
from lightsleep.lab.kernels.modules import build_modules
from lightsleep.lab.kernels.roots import kernel_tree, sources
from lightsleep.sources import KERNEL

pytestmark = [pytest.mark.build, pytest.mark.more]

META = re.compile(r"linux-headers-(?:(\d+\.\d+)-)?((?:cloud-|rt-)?(?:amd64|arm64)\S*)")
"""A meta-package: the series, if its name has one, and the flavour. Those of an ABI have more."""

TARGETS = {"bookworm": "bookworm", "trixie": "trixie", "trixie-backports": "trixie"}
"""Where headers come from -> the suite that the compiler comes from."""

FLAVOURS = {
    "x86_64": ("amd64", "cloud-amd64", "rt-amd64"),
    "aarch64": ("arm64", "cloud-arm64", "rt-arm64"),
}
SERIES: dict[str, tuple[str, ...]] = {
    "bookworm": ("", "6.12"),
    "trixie": ("",),
    "trixie-backports": ("",),
}
"""What a suite has beside the series of the release, which has no name."""

EXCLUDED = {
    "arm64-16k": "differs from arm64 by the size of pages alone, which no module of ours reads",
}
"""Flavour -> why it is not built for."""


def offered(arch: Arch, target: str, folder: Path) -> set[tuple[str, str]]:
    """Return series and flavour of each meta-package of headers that a suite has."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    # apt reads the newest of all sources: those of the suite alone.
    lines = [x for x in sources(TARGETS[target], target) if x.split()[2].startswith(target)]
    (folder / "sources.list").write_text("\n".join(lines) + "\n")
    settings = {
        "Dir::State": folder / "state",
        "Dir::Cache": folder / "cache",
        "Dir::State::status": "/dev/null",
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::trustedparts": "/usr/share/keyrings",
        "APT::Architecture": arch.debian,
        "APT::Architectures": arch.debian,
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", *options, "-qq", "update"], check=True)
    argv = ["apt-cache", *options, "pkgnames", "linux-headers-"]
    names = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
    found = [META.fullmatch(name) for name in names]
    return {(x[1] or "", x[2]) for x in found if x}


@pytest.mark.skipif(os.geteuid() != 0, reason="apt's lists")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("arch", FLAVOURS)
def test_no_kernel_of_debian_is_left_out(arch: str, target: str, tmp_path: Path) -> None:
    there = offered(ARCHES[arch], target, tmp_path)
    named = {(series, flavour) for series, flavour in there if flavour not in EXCLUDED}
    assert named == {(series, flavour) for series in SERIES[target] for flavour in FLAVOURS[arch]}


@pytest.mark.parametrize(
    ("arch", "target", "series", "flavour"),
    [
        (arch, target, series, flavour)
        for arch in FLAVOURS
        for target in TARGETS
        for series in SERIES[target]
        for flavour in FLAVOURS[arch]
    ],
)
def test_the_modules_build(arch: str, target: str, series: str, flavour: str) -> None:
    name = f"{series}-{flavour}".lstrip("-")
    kernel = Kernel(
        name=f"{target}-{name}",
        suite=TARGETS[target],
        target=target,
        image=f"linux-image-{name}",
        headers=f"linux-headers-{name}",
    )
    tree = kernel_tree(ARCHES[arch], kernel)
    modules = build_modules(ARCHES[arch], tree, KERNEL, {"LIGHTSLEEP_TOOLS": "1"})
    assert {x.stem for x in modules} == {
        *("cpuidle_lightsleep", "virtio_poll_source"),
        *("test_cpuidle_latency", "cpuidle_synthetic"),
    }
