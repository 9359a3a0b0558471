# SPDX-License-Identifier: GPL-2.0-only
"""Reads what decides whether cpuidle_lightsleep can be loaded: modules, signatures, containers.

Module files, keys and EFI variables are looked at and not kept: they belong into no recording.
"""

import contextlib
import gzip
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from lightsleep.namespaces import MACHINE_NAMESPACES
from lightsleep.scan.model import Loading
from lightsleep.scan.tree import MAX_BYTES, Tree, read_bounded, status_of
from lightsleep.sources import KERNEL

MODULE = "cpuidle_lightsleep"
FOLDERS = ("updates/dkms", "updates", "extra", "weak-updates", "kernel/drivers/cpuidle")

PROC_SELF = Path("/proc/self")

BUILD_NOTE = f"sys/module/{MODULE}/notes/.note.gnu.build-id"

FIRMWARE = "sys/firmware"
EFI = f"{FIRMWARE}/efi"
SECURE_BOOT = f"{EFI}/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
ACCEPTED_KEYS = (
    f"{EFI}/mok-variables/MokListRT",
    f"{EFI}/efivars/MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23",
    f"{EFI}/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f",
)
DKMS_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")

SIGNED = b"~Module signature appended~\n"
MAX_MODULE = 16 << 20
MAX_UNPACKED = 4 * MAX_MODULE

OPENERS: dict[str, Callable[[io.BytesIO], io.BufferedIOBase]] = {
    ".ko": lambda file: file,
    ".gz": lambda file: gzip.GzipFile(fileobj=file),
    ".xz": lambda file: lzma.LZMAFile(file),  # noqa: SIM115 (of memory, not to be closed)
}


def read(tree: Tree, release: str | None, running: bool) -> Loading:
    """Return what there is; ``running`` says that ``tree`` is this machine, not a recording."""
    libraries = f"lib/modules/{release or 'unknown'}"
    installed = _installed(tree, libraries)
    built = built_in_sources(release) if running and not installed else None
    file = tree.at(installed) if installed else built
    drivers = ("cpuidle_haltpoll", MODULE)
    unloadable = [name for name in drivers if tree.line(f"sys/module/{name}/initstate")]
    return Loading(
        loaded=tree.exists(f"sys/module/{MODULE}"),
        built_in=tree.exists(f"sys/module/{MODULE}") and MODULE not in unloadable,
        unloadable=unloadable,
        holders=tree.names(f"sys/module/{MODULE}/holders"),
        modules=loads_modules(tree, running),
        modules_disabled=tree.flag("proc/sys/kernel/modules_disabled"),
        installed=installed,
        built=_below_root(built) if built else None,
        headers=_headers(tree, libraries, running),
        signed=_signed(file) if file else None,
        enrolled=_enrolled(tree),
        lockdown=lockdown(tree),
        sig_enforce=tree.flag("sys/module/module/parameters/sig_enforce"),
        secure_boot=secure_boot(tree),
        container=container(tree, running),
        root=os.geteuid() == 0 if running else None,
        tdx_guest=_has(tree, "flags", "tdx_guest"),
        timers_stop=_has(tree, "bugs", "apic_c1e"),
    )


def of_file(loading: Loading, module: Path) -> Loading:
    """Return what it would be if ``module``, a file, were the installed one."""
    return replace(loading, installed=_below_root(module), signed=_signed(module))


def built_in_sources(release: str | None) -> Path | None:
    """Return the module that was built in the sources: of these sources, and for this kernel.

    An upgrade of the package replaces the sources and leaves what was built of the old ones. It
    gives files the times that they had in the package, but cannot choose when they changed here.
    """
    file = KERNEL / f"{MODULE}.ko"
    try:
        built_for = f"vermagic={release} ".encode()
        if not release or built_for not in file.read_bytes():
            return None
        changed_s = max((x.stat().st_ctime for x in KERNEL.rglob("*.[ch]")), default=0.0)
        return file if changed_s <= file.stat().st_mtime else None
    except OSError:
        return None


def _below_root(file: Path) -> str:
    return str(file.absolute().relative_to("/"))


def loads_modules(tree: Tree, running: bool) -> bool | None:
    """Return whether the kernel loads modules; a recording does not list /proc/modules."""
    if tree.number("proc/sys/kernel/modules_disabled"):
        return False
    if running and tree.exists("proc/version"):
        return tree.exists("proc/modules")
    return None


def _headers(tree: Tree, libraries: str, running: bool) -> bool | None:
    if not running and not tree.exists("lib/modules"):
        return None
    try:
        return status_of(tree.at(f"{libraries}/build/Makefile")) is not None
    except OSError:
        return None  # some keep users out of /lib/modules


def _installed(tree: Tree, libraries: str) -> str | None:
    """Return the file of our module for the kernel whose modules are in ``libraries``."""
    for folder in FOLDERS:
        for suffix in ("", ".xz", ".gz", ".zst"):
            file = f"{libraries}/{folder}/{MODULE}.ko{suffix}"
            if tree.is_file(file):
                return file
    return None


def is_another_build(root: Path, installed: str | None) -> bool | None:
    """Return whether the loaded module is not the one of the file; None where nothing tells.

    The linker notes a hash of what it linked, which the kernel shows. To sign a module, to pack it,
    and to strip it leave the note as it is. The same sources built elsewhere may have another.
    """
    note = _content(root / BUILD_NOTE, MAX_BYTES)
    module = _unpacked(root / installed) if note and installed else None
    return None if not note or module is None else note not in module


def _signed(module: Path) -> bool | None:
    """Return whether a module has a signature, None where it cannot be read or is too large."""
    unpacked = _unpacked(module)
    return None if unpacked is None else unpacked.endswith(SIGNED)


def _unpacked(module: Path) -> bytes | None:
    """Return a module as it is loaded, None where it cannot be read or is too large."""
    opener = OPENERS.get(module.suffix)
    packed = _content(module, MAX_MODULE) if opener else None
    if opener is None or packed is None:
        return None
    try:
        content = opener(io.BytesIO(packed)).read(MAX_UNPACKED + 1)
    # What a damaged file says of its size may be more than there is memory.
    except (OSError, EOFError, MemoryError, lzma.LZMAError, zlib.error):
        return None
    return content if len(content) <= MAX_UNPACKED else None


def _content(file: Path, most: int) -> bytes | None:
    """Return a file, None where it cannot be read or has more than ``most`` bytes."""
    with contextlib.suppress(OSError):
        content = read_bounded(file, most + 1)
        return content if len(content) <= most else None
    return None


def _enrolled(tree: Tree) -> bool | None:
    """Return whether a key that DKMS may sign with is one of the owner's, or of the firmware's.

    All are certificates in DER, so the one is found in the other as it is. Which one DKMS signs
    with is up to its configuration.
    """
    keys = [key for key in _contents(tree, DKMS_KEYS) if key]
    accepted = _contents(tree, ACCEPTED_KEYS)
    return any(key in each for key in keys for each in accepted) if keys and accepted else None


def _contents(tree: Tree, files: Iterable[str]) -> list[bytes]:
    found = []
    for file in files:
        with contextlib.suppress(OSError):  # links that lead in a circle
            found.append(_content(tree.at(file), MAX_BYTES))
    return [content for content in found if content is not None]


def lockdown(tree: Tree) -> str | None:
    """Return integrity or confidentiality where the kernel is locked down, else None."""
    found = re.search(r"\[(\w+)\]", tree.text("sys/kernel/security/lockdown") or "")
    return found[1] if found and found[1] != "none" else None


def secure_boot(tree: Tree) -> bool | None:
    """Return whether Secure Boot of UEFI is on; None where that cannot be read.

    The EFI variable has four bytes of attributes, then one of value. Without EFI, there is none.
    """
    if tree.names(FIRMWARE) and not tree.exists(EFI):
        return False
    content = b"".join(_contents(tree, [SECURE_BOOT]))
    return content[4] == 1 if len(content) == 5 else None


def cpuinfo_words(tree: Tree, key: str) -> list[str] | None:
    """Return what /proc/cpuinfo lists of the first CPU under ``key``; None where it does not."""
    found = re.search(rf"(?m)^{key}[ \t]*:(.*)$", tree.text("proc/cpuinfo") or "")
    return found[1].split() if found else None


def _has(tree: Tree, key: str, word: str) -> bool | None:
    words = cpuinfo_words(tree, key)
    return None if words is None else word in words


def container(tree: Tree, running: bool) -> str | None:
    """Return what kind of container this is, None where nothing says that it is one.

    Kubernetes leaves no file that tells. But a container has process IDs of its own. The other way
    round, the files are in a virtual machine, too, that has its root file system from an image of a
    container. It has all namespaces of the machine. A container may share some of them.

    One that shares the process IDs has another root folder than init. So has a chroot, and a
    service may have namespaces of its own: only both together tell. Without permission to look at
    the root folder of init, two namespaces of its own count as a container.
    """
    if name := tree.line("run/systemd/container"):
        return name
    names = MACHINE_NAMESPACES if running else ()
    own = {name: _is_own(tree.root, name) for name in names}
    if own and all(x is False for x in own.values()):
        return None
    if tree.exists(".dockerenv"):
        return "docker"
    if tree.exists("run/.containerenv"):
        return "podman"
    if own.pop("pid", None):
        return "unknown"
    elsewhere = has_another_root(tree.root) if own else False
    least = 2 if elsewhere is None else 1
    count = sum(x is True for x in own.values())
    return "unknown" if elsewhere is not False and count >= least else None


def kind_of_container(root: Path) -> str | None:
    """Return what container() does of the machine, or the machine in a folder, at ``root``."""
    return container(Tree(root), running=root == Path("/"))


def has_another_root(root: Path) -> bool | None:
    """Return whether init has another root folder, as seen in a chroot; None if not known."""
    try:
        return not (root / "proc/1/root").samefile(root)
    except PermissionError:  # without CAP_SYS_PTRACE
        return _has_another_root_mount(root)
    except OSError:
        pass
    # Without /proc, as in a new chroot: no machine runs like that.
    return True if root == Path("/") and not PROC_SELF.exists() else None


def _has_another_root_mount(root: Path) -> bool | None:
    """Compare the root folder with init's by what is mounted there, which everybody may read."""
    with contextlib.suppress(OSError):
        if init := _root_mount(root / "proc/1/mountinfo"):
            return _root_mount(root / "proc/self/mountinfo") != init
    return None


def _root_mount(mountinfo: Path) -> list[str] | None:
    """Return the device that is mounted as a root folder, and which folder of it.

    A chroot in a folder where nothing is mounted has none.
    """
    lines = [line.split() for line in mountinfo.read_text(errors="replace").splitlines()]
    mounts = [x[2:4] for x in lines if len(x) > 4 and x[4] == "/"]
    return mounts[-1] if mounts else None


def _is_own(root: Path, namespace: str) -> bool | None:
    """Return whether a namespace is not the machine's; None where that is not known."""
    with contextlib.suppress(OSError):
        link = (root / "proc/self/ns" / namespace).readlink()
        return str(link) != MACHINE_NAMESPACES[namespace]
    return None
