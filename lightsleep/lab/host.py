# SPDX-License-Identifier: GPL-2.0-only
"""Programs of the host: found or named by package, run so that nothing outlives us."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import ParamSpec, TypeVar

from lightsleep.errors import LightsleepError

P = ParamSpec("P")
T = TypeVar("T")

PACKAGES = {
    "bwrap": "bubblewrap",
    "cpio": "cpio",
    "depmod": "kmod",
    "dtc": "device-tree-compiler",
    "git": "git",
    "iasl": "acpica-tools",
    "mksquashfs": "squashfs-tools",
    "mmdebstrap": "mmdebstrap",
    "patch": "patch",
    "setpriv": "util-linux",
    "unifdef": "unifdef",
    "xz": "xz-utils",
    "zstd": "zstd",
}
"""Program -> the Debian package that has it."""


SYSTEM_PATH = "/usr/sbin:/sbin"
"""Where some of them are, which is not on every user's PATH."""


FORBIDDEN = re.compile(
    "^bwrap: (Can't mount |Creating new namespace |Failed to make / slave|No permissions |"
    "pivot_root|setting up uid map)",
    re.MULTILINE,
)
"""What bubblewrap says where it may not make namespaces, or not mount in them."""

NEEDS_NAMESPACES = (
    "The lab needs namespaces, which this machine, or its container, forbids. On a host, allow "
    "them (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, "
    "kernel.apparmor_restrict_unprivileged_userns). Give a container more rights (docker run "
    "--privileged), or use a virtual machine"
)


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def need(*programs: str, packages: dict[str, str] = PACKAGES) -> None:
    """Raise LightsleepError naming the packages to install, where a program is missing."""
    missing = [program for program in programs if shutil.which(program, path=_path()) is None]
    if missing:
        names = " ".join(sorted({packages[program] for program in missing}))
        raise LightsleepError(
            f"the lab needs {', '.join(missing)}, not found on this machine; "
            f"install with: apt-get install {names}"
        )


def run(argv: Sequence[str | Path], what: str, timeout_s: float = 900) -> str:
    """Run ``argv`` and return its standard output; it dies when we do.

    Raises LightsleepError that says ``what`` failed and ends with what the program printed.
    """
    need("setpriv")
    # In a process group of its own, so that Ctrl-C reaches us first and we end it in order.
    with subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        process_group=0,
        env=os.environ | {"PATH": _path(), "LC_ALL": "C"},
    ) as process:
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise LightsleepError(f"{what}: not done after {timeout_s:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
    if process.returncode:
        tail = "\n".join(output.splitlines()[-40:])
        hint = f"\n{NEEDS_NAMESPACES}" if FORBIDDEN.search(output) else ""
        raise LightsleepError(f"{what} failed (exit status {process.returncode}):\n{tail}{hint}")
    return output


def aside(function: Callable[P, T], *given: P.args, **named: P.kwargs) -> Future[T]:
    """Call a function beside what follows; the end of this process does not wait for it.

    Programs that it runs die with us; see run().
    """
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(function(*given, **named))
        except BaseException as error:  # whoever asks for the result gets it
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


def contained(
    argv: Sequence[str], *binds: str, folder: Path | None = None, shown: Path | None = None
) -> list[str]:
    """Wrap ``argv`` in a mount and a process namespace that end, with all in them, when we end.

    ``binds`` are arguments of bwrap that say which files are there. Of the host's /dev and /proc,
    only ``folder`` is, where it is below one of them (/dev/shm), and ``shown``, to be read.
    """
    need("bwrap")
    namespaces = ("--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
    read = ("--ro-bind", str(shown), str(shown)) if shown else ()
    kept = ("--bind", str(folder), str(folder)) if folder else ()
    return ["bwrap", *namespaces, *binds, "--dev", "/dev", "--proc", "/proc", *kept, *read, *argv]
