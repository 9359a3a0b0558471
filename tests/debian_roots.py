# SPDX-License-Identifier: GPL-2.0-only
"""Root file systems of Debian to build and install packages in, kept in the lab's cache."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.kernels.roots import sources

RUN = ("dkms", "kmod", "linux-headers-cloud-amd64", "make", "python3-click", "python3-rich")
"""What our packages depend on."""

BUILD = (
    *("build-essential", "debhelper", "dh-dkms", "dh-python", "fakeroot", "lintian"),
    *("pybuild-plugin-pyproject", "python3-all", "python3-setuptools"),
)
"""What building and checking them needs."""

REPORT = ("python3-jinja2", "python3-jsonschema", "python3-matplotlib")
"""What `lightsleep report` of a measurement or a comparison needs, as docs/packages.md says."""

TUTORIAL = ("redis-server", "redis-tools", "systemd")
"""What the tutorial puts load on, and what loads modules at boot."""

PACKAGES = {"bookworm": (*RUN, *BUILD, *REPORT), "trixie": (*RUN, *TUTORIAL)}
"""Suite -> what is installed there. Our packages are built in the older one, and tried in both."""

MACHINES = {
    "bookworm": (*RUN, "linux-image-cloud-amd64", *TUTORIAL),
    "trixie": PACKAGES["trixie"],
}
"""Suite -> what is installed on a machine that boots; in the newer one, headers bring a kernel."""

ENVIRONMENT = (
    *("env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root"),
    "DEBIAN_FRONTEND=noninteractive",
)

ALONE = ("unshare", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child")
"""What mmdebstrap mounts in a root goes with it, however it ends.

Among it is this machine's /dev/shm: who removed what a killed build left would empty that.
"""


class Root:
    """A root file system to write to."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, command: str, timeout_s: float = 600) -> str:
        """Run a shell command inside. Raises LightsleepError with what it printed if it fails."""
        argv = [*ENVIRONMENT, "sh", "-ec", command]
        inside = host.contained(argv, "--bind", str(self.path), "/")
        return host.run(inside, command.strip().splitlines()[0], timeout_s)

    def snapshot(self) -> dict[str, str]:
        """Return what each file, link and folder is, but for package lists, logs and caches."""
        found = {}
        passed = ("var/lib/dpkg", "var/log", "var/cache", "var/lib/apt", "root", "proc", "dev")
        for folder, _, names in os.walk(self.path):
            here = Path(folder).relative_to(self.path)
            if str(here).startswith(passed) or str(here) == "tmp":
                continue
            found[f"{here}/"] = ""
            for name in names:
                file = Path(folder, name)
                found[str(here / name)] = content(file)
        return found


def content(file: Path) -> str:
    """Return what tells a file from another: its target, or its mode and digest."""
    if file.is_symlink():
        return str(file.readlink())
    if not file.is_file():
        return "special"
    return f"{file.stat().st_mode:o} {hashlib.sha256(file.read_bytes()).hexdigest()}"


def cached(suite: str, packages: tuple[str, ...]) -> Path:
    """Return the root of a suite. The first time, this takes two minutes and up to 1.2 GB."""

    def build(scratch: Path) -> None:
        include = f"--include={','.join(packages)}"
        tree = scratch / "tree"
        mmdebstrap = ["mmdebstrap", "--mode=root", "--variant=apt", "--format=directory", include]
        mmdebstrap.append("--dpkgopt=force-unsafe-io")
        host.need("mmdebstrap")
        argv = [*ALONE, *mmdebstrap, suite, str(tree), *sources(suite, suite)]
        host.run(argv, f"installing {suite}", timeout_s=1800)

    key = cache.digest(repr(packages))
    return cache.entry(f"packaging-{suite}-{key}", build, needs_mb=2000) / "tree"


@contextlib.contextmanager
def root(suite: str, folder: Path, packages: tuple[str, ...] = ()) -> Iterator[Root]:
    """Hand out a copy of a suite's root, below ``folder``, and remove it at the end.

    Without ``packages`` it has those that PACKAGES says.
    """
    copy = folder / suite
    try:
        original = cached(suite, packages or PACKAGES[suite])
        host.run(["cp", "-a", "--reflink=auto", original, copy], f"copying {suite}")
        yield Root(copy)
    finally:
        shutil.rmtree(copy, ignore_errors=True)
