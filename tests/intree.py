# SPDX-License-Identifier: GPL-2.0-only
"""Modules that belong to the guest's kernel, which a guest does not have on its disk."""

from __future__ import annotations

import base64
from pathlib import Path

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.initramfs import with_dependencies
from lightsleep.lab.kernels.build import any_tree
from lightsleep.lab.kernels.config import ARCHES


def copy(guest: Guest, file: Path, to: str) -> None:
    """Write a file of this machine into the guest."""
    guest.write_text(f"{to}.base64", base64.b64encode(file.read_bytes()).decode(), timeout_s=120)
    guest.run(["sh", "-c", f"base64 -d {to}.base64 > {to} && rm {to}.base64"])


def insmod(guest: Guest, name: str, *parameters: str) -> None:
    """Load a module of the guest's kernel, and what it needs."""
    arch = ARCHES[guest.machine.arch]
    tree = any_tree(arch, arch.bootable[guest.machine.kernel])
    loaded = guest.run(["lsmod"]).stdout
    for file in with_dependencies(tree, [name]):
        module = file.stem.replace("-", "_")
        if f"\n{module} " not in loaded:
            copy(guest, file, "/run/module.ko")
            own = parameters if module == name else ()
            guest.run(["insmod", "/run/module.ko", *own], timeout_s=120)
