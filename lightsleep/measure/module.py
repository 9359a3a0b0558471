# SPDX-License-Identifier: GPL-2.0-only
"""The kernel module test_cpuidle_latency: finding it, loading it, building it, and why not."""

import errno
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from lightsleep.errors import LightsleepError
from lightsleep.measure.kernel_backend import FILES, KernelBackend
from lightsleep.scan.loading import loads_modules, lockdown, secure_boot
from lightsleep.scan.obstacles import by_secure_boot
from lightsleep.scan.tree import Tree
from lightsleep.settings import apply
from lightsleep.settings.journalled import Session
from lightsleep.sources import DKMS_INSTALL, kernel_sources

NAME = "test_cpuidle_latency"
HEADERS = Path("/lib/modules")

NOT_INSTALLED = "not found"
"""What modprobe says of a module that it does not find, be it kmod's or busybox's."""

MAKE_ROOM = "set TMPDIR to a folder with room"
USERSPACE = "or measure with --mode userspace, which is less certain"


class NoModule(LightsleepError):
    """The module is not loaded, or cannot be used: ``why``, and with which ``remedy`` it could."""

    def __init__(self, why: str, remedy: str) -> None:
        """Keep both; the message names the other way out, too."""
        super().__init__(f"{why}: {remedy}, {USERSPACE}")
        self.why = why
        self.remedy = remedy


def attached(root: Path, load: bool, session: Session) -> KernelBackend:
    """Return the module's backend; with ``load``, load the module where it is not loaded.

    What was loaded here is unloaded at the end of the session. Raises NoModule where it cannot be
    used, LightsleepError where it does not build, or is installed and cannot be loaded.
    """
    # Before a module is built or signed in vain: a kernel that is locked down shows the files, and
    # lets nobody write to them.
    if locked := lockdown(Tree(root)):
        raise NoModule(
            f"the kernel is locked down ({locked}), which makes debugfs unusable",
            "boot without Secure Boot or lockdown=",
        )
    if not (root / "sys/module" / NAME).is_dir():
        if loads_modules(Tree(root), running=True) is False:
            raise NoModule(
                "this kernel loads no modules",
                "boot one that does, where kernel.modules_disabled is 0",
            )
        if not load:
            raise NoModule(
                f"the kernel module {NAME} is not loaded", "use --load to load or build it"
            )
        _load(session, root)
    _check_debugfs(root)
    return KernelBackend(root)


def _check_debugfs(root: Path) -> None:
    if (root / FILES / "samples").exists():
        return
    if not _mounted(root):
        raise NoModule("debugfs is not mounted", "mount -t debugfs debugfs /sys/kernel/debug")
    raise NoModule(
        f"{NAME} is loaded, but /{FILES}/samples does not exist; the module may be of another "
        "version",
        f"unload it (rmmod {NAME}) and use --load",
    )


def _mounted(root: Path) -> bool:
    mounts = (line.split() for line in _text(root / "proc/self/mounts").splitlines())
    return any(len(words) > 2 and words[2] == "debugfs" for words in mounts)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _load(session: Session, root: Path) -> None:
    """Load the module as installed (DKMS), else build it on the spot."""
    try:
        apply.load(session, root, NAME, ["modprobe", NAME])
    except LightsleepError as error:
        if NOT_INSTALLED not in error.message:
            error.add_note(USERSPACE.capitalize())
            raise
    else:
        return
    try:
        with tempfile.TemporaryDirectory(prefix="lightsleep-") as scratch:
            module = _build(Path(scratch) / "kernel")
            try:
                for needed in _depends(module):  # insmod loads nothing else
                    session.load(needed, ["modprobe", needed])
                session.load(NAME, ["insmod", str(module)])
            except LightsleepError as error:
                remedy = _hint(error.message, root)
                raise NoModule(f"the kernel refuses {NAME}", remedy) from error
    except OSError as error:
        # Of a folder, each file that could not be copied is told: the first one is enough.
        why = error.args[0][0][2] if isinstance(error, shutil.Error) else str(error)
        why = re.sub(r"^\[Errno \d+\] ", "", why)
        raise LightsleepError(f"cannot build {NAME}: {why}; {MAKE_ROOM}") from error


def _build(folder: Path) -> Path:
    release = os.uname().release
    headers = HEADERS / release / "build"
    try:
        sources = kernel_sources()
    except LightsleepError as error:
        raise NoModule(
            f"{NAME} is not installed, and cannot be built",
            f"{error.message}, or {DKMS_INSTALL} LIGHTSLEEP_TOOLS=1",
        ) from error
    if not (headers / "Makefile").exists():
        raise NoModule(
            f"{NAME} is not installed, and building it needs the headers of kernel {release}",
            f"apt install linux-headers-{release} (on Debian; elsewhere the name differs)",
        )
    if missing := [tool for tool in ("make", _compiler(headers)) if not shutil.which(tool)]:
        tools = " and ".join(missing)
        raise NoModule(f"building {NAME} needs {tools}", f"install {tools}")
    click.echo(f"building {NAME} for kernel {release}", err=True)
    shutil.copytree(sources, folder, ignore=shutil.ignore_patterns("*.o", "*.ko", ".*"))
    make = ["make", "-C", str(folder), f"BUILD={headers}", "LIGHTSLEEP_TOOLS=1", "modules"]
    if refusal := _run(make):
        hint = f"; {MAKE_ROOM}" if os.strerror(errno.ENOSPC) in refusal else ""
        raise LightsleepError(f"cannot build {NAME} for kernel {release}:\n{refusal}{hint}")
    return folder / f"{NAME}.ko"


def _depends(module: Path) -> list[str]:
    """Return the modules that a module needs: of virtio, for example, where it is none itself."""
    try:
        argv = ["modinfo", "-F", "depends", str(module)]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError:  # insmod says what is missing
        return []
    return [name for name in done.stdout.strip().split(",") if name]


def _compiler(headers: Path) -> str:
    """Return what has built the kernel, and is to build its modules."""
    try:
        by_clang = b"CONFIG_CC_IS_CLANG=y\n" in (headers / ".config").read_bytes()
    except OSError:
        return "gcc"
    return "clang" if by_clang else "gcc"


def _hint(refusal: str, root: Path) -> str:
    if not apply.signature_refused(refusal, root):
        return refusal
    to_do = by_secure_boot(secure_boot(Tree(root)), "Sign it, or disable Secure Boot.")
    return f"{refusal} (this kernel loads only signed modules. {to_do.removesuffix('.')})"


def _run(argv: list[str]) -> str | None:
    """Run a command; return the last lines it said where it failed, else None."""
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"
    if done.returncode == 0:
        return None
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return "\n".join(said[-8:]) or f"{argv[0]}: exit status {done.returncode}"
