# SPDX-License-Identifier: GPL-2.0-only
"""The initramfs of a guest: drivers to reach its root, and what is put into that root.

The payload is the part that changes while one works: our modules, the agent and the lightsleep
package itself, so that its probing half can be run in the guest. The root image stays as it is.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import lightsleep
from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.kernels.config import DRIVERS, USEFUL_DRIVERS
from lightsleep.lab.kernels.roots import BootFiles, GuestRoot, compile_python
from lightsleep.sources import KERNEL

GUEST_FILES = Path(__file__).parent / "inside"
GUEST_MODULES = "/usr/lib/lightsleep/modules"
"""Where a guest finds the modules we built."""
INSTALL_DRIVER = f"""\
folder=/lib/modules/$(uname -r)/updates
mkdir -p $folder
cp {GUEST_MODULES}/cpuidle_lightsleep.ko $folder
depmod
"""
"""What makes modprobe in a guest find our driver, as after the installation of the package."""

MODPROBE_MIB = 64
"""How large a kernel's own modules may be together for guests to have them all. They stay in the
memory of each guest, which has 512 MiB; while it boots, they are there twice."""

NO_MODPROBE = "no modprobe"
"""The beginning of the warning that guests are without the modules of somebody's own kernel."""


def with_dependencies(
    tree: BootFiles, names: Iterable[str], useful: Iterable[str] = ()
) -> list[Path]:
    """Return the files of modules ``names`` and of all they need, in the order to load them.

    A name that is built into the kernel contributes nothing, nor does one that is only ``useful``
    and that the kernel does not have. Raises LightsleepError where it has not one of ``names``.
    """
    needs: dict[str, tuple[str, list[str]]] = {}
    for line in (tree.modules / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[_name(file)] = (file, others.split())
    listed = tree.modules / "modules.builtin"  # missing where somebody copied modules alone
    builtin = {_name(x) for x in listed.read_text().split()} if listed.exists() else set()
    found: dict[str, None] = {}
    for name in [*names, *(x for x in useful if x in needs)]:
        if name in builtin:
            continue
        if name not in needs:
            raise LightsleepError(
                f"kernel {tree.release} has {name} neither built in nor among the modules in "
                f"{tree.modules}: guests need {', '.join(DRIVERS)}; "
                "enable them in its configuration"
            )
        file, before = needs[name]
        # modules.dep lists the nearest dependency first.
        found |= dict.fromkeys([*reversed(before), file])
    return [tree.modules / file for file in found]


def module_files(tree: BootFiles) -> list[Path]:
    """Return the files of a kernel's own modules.

    Those that are listed, but gone, are left out, and those elsewhere: a list may name any place.
    """
    lines = (tree.modules / "modules.dep").read_text().splitlines()
    named = (tree.modules / line.partition(":")[0] for line in lines)
    return [x for x in named if x.is_relative_to(tree.modules) and x.is_file()]


def for_modprobe(tree: BootFiles) -> list[Path]:
    """Return what modprobe reads of a kernel's modules: them, and the lists beside them.

    A folder of modules has links, too: to headers, and to a source. What these lead to is left out.
    """
    return [*module_files(tree), *sorted(tree.modules.glob("modules.*"))]


def too_large(tree: BootFiles) -> str:
    """Say that guests do without these modules, as they are too large; empty where they are not."""
    mib = sum(x.stat().st_size for x in for_modprobe(tree)) / (1 << 20)
    if mib <= MODPROBE_MIB:
        return ""
    return (
        f"the modules of {tree.release} have {mib:.1f} MiB, over {MODPROBE_MIB}: install them with "
        "INSTALL_MOD_STRIP=1, and name them with --image and --modules, or build fewer"
    )


def _name(file: str) -> str:
    """Return a module's name as the kernel has it."""
    return Path(file).name.split(".")[0].replace("-", "_")


def copy_module(source: Path, folder: Path) -> str:
    """Copy a module, uncompressed (busybox loads no other), and return its file name."""
    folder.mkdir(parents=True, exist_ok=True)
    tool = {".xz": "xz", ".zst": "zstd"}.get(source.suffix)
    target = folder / f"{_name(source.name)}.ko"
    if tool is None:
        shutil.copy(source, target)
    else:
        host.need(tool)
        copy = target.with_name(source.name)
        shutil.copyfile(source, copy)
        host.run([tool, "-d", "-f", "--quiet", copy], f"unpacking {source.name}")
        copy.with_suffix("").rename(target)
        copy.unlink(missing_ok=True)  # zstd keeps it
    return target.name


def package_files() -> list[Path]:
    """Return the files of the lightsleep package that guests get."""
    root = Path(lightsleep.__file__).parent
    files = (x for x in root.rglob("*") if x.is_file() and "__pycache__" not in x.parts)
    return sorted(x for x in files if KERNEL not in x.parents)  # modules reach it built


def initramfs(
    tree: BootFiles, root: GuestRoot, modules: Sequence[Path], theirs: Sequence[Path] = ()
) -> Path:
    """Return the initramfs for a kernel, a root and the built ``modules``.

    ``theirs`` are what modprobe is to find of the kernel's own.
    """

    def build(scratch: Path) -> None:
        stage = scratch / "stage"
        for name in ("bin", "proc", "sys", "dev"):
            (stage / name).mkdir(parents=True)
        shutil.copy(root.busybox, stage / "bin/busybox")
        (stage / "bin/sh").symlink_to("busybox")
        shutil.copy(GUEST_FILES / "init", stage / "init")
        (stage / "init").chmod(0o755)
        names = [
            copy_module(x, stage / "drivers")
            for x in with_dependencies(tree, DRIVERS, USEFUL_DRIVERS)
        ]
        (stage / "modules.load").write_text("".join(f"/drivers/{name}\n" for name in names))
        _payload(stage / "payload", modules)
        for file in theirs:
            # Not /lib, which is a link in the root: a folder of this name would hide it.
            folder = stage / "payload/usr/lib/modules" / tree.release
            target = folder / file.relative_to(tree.modules)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        readable(stage)
        pack(stage, scratch / "initramfs")
        shutil.rmtree(stage)

    package = [part for x in package_files() for part in (str(x), x.read_bytes())]
    built = [part for x in modules for part in (x.name, x.read_bytes())]
    key = cache.digest(
        tree.key, root.squashfs.parent.name, *package, *built, *(x.name for x in theirs)
    )
    needs_mb = 20 + sum(2 * x.stat().st_size for x in theirs) // 10**6
    return cache.entry(f"initramfs-{key}", build, needs_mb=needs_mb) / "initramfs"


def _payload(folder: Path, modules: Sequence[Path]) -> None:
    own = folder / "usr/lib/lightsleep"
    own.mkdir(parents=True)
    shutil.copy(GUEST_FILES / "agent.py", own)
    for module in modules:
        copy_module(module, folder / GUEST_MODULES.lstrip("/"))
    base = Path(lightsleep.__file__).parent
    for file in package_files():
        target = folder / "usr/lib/python3/dist-packages/lightsleep" / file.relative_to(base)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    # A kernel keeps the times of these files only with INITRAMFS_PRESERVE_MTIME. And what only
    # saves time keeps no guest from booting where packages cannot be fetched.
    with contextlib.suppress(LightsleepError):
        compile_python(folder, "checked-hash")


def readable(stage: Path) -> None:
    """Let every user of a guest read and enter what is there, whatever our umask is."""
    for path in stage.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else path.stat().st_mode | 0o444)


def pack(stage: Path, into: Path) -> None:
    """Write the files of ``stage`` to the archive ``into``, as the kernel reads it.

    Raises LightsleepError where cpio fails, OSError where ``into`` cannot be written.
    """
    host.need("cpio")
    names = "\0".join(str(x.relative_to(stage)) for x in sorted(stage.rglob("*")))
    done = subprocess.run(
        ["cpio", "--quiet", "--null", "--create", "--format=newc", "--owner=0:0"],
        cwd=stage,
        input=names.encode(),
        capture_output=True,
    )
    if done.returncode:
        raise LightsleepError(f"packing an initramfs failed: {done.stderr.decode().strip()}")
    into.write_bytes(done.stdout)  # by us: where a disk is full, cpio asks for another tape
