# SPDX-License-Identifier: GPL-2.0-only
"""Which accelerator runs the guests: KVM where it really runs a kernel, else TCG.

That /dev/kvm exists says little: under some nested hypervisors a distribution kernel hangs
right after the boot loader. So one short boot decides, once per boot of the host. It has no
root file system and must panic for want of one, which takes a working KVM about a second. Where a
kernel of one's own fails, one of Debian's tells whether that is KVM's fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab.boot import emulator
from lightsleep.lab.kernels.config import Arch
from lightsleep.lab.kernels.roots import BootFiles

KVM = Path("/dev/kvm")
PROBE_S = 20.0
"""Modules may be built meanwhile."""
PROOF = "Unable to mount root fs"
STOPPED = b"KVM internal error"
"""Then QEMU stops the guest, prints its registers, and waits for ever."""
BUT = "/dev/kvm is there, but "
"""How the reason begins for which a kernel is not run by KVM."""

Wanted = Literal["auto", "kvm", "tcg", "tcg-single", "tcg-icount"]

TRANSLATED_MIB = 256
"""A guest's translated code fits; QEMU's own default may grow to a gigabyte for each guest."""

OPTIONS = {
    "kvm": ("-accel", "kvm"),
    "tcg": ("-accel", f"tcg,thread=multi,tb-size={TRANSLATED_MIB}"),
    # All CPUs of a guest take turns in one thread. Nothing runs beside them, so the code that a
    # kernel patches is never translated while it changes. See splat.emulator_raced().
    "tcg-single": ("-accel", f"tcg,thread=single,tb-size={TRANSLATED_MIB}"),
    # The clock counts instructions, 4 ns each, and leaps where all CPUs idle: what a guest measures
    # does not depend on the host.
    "tcg-icount": (
        *("-accel", f"tcg,thread=single,tb-size={TRANSLATED_MIB}"),
        *("-icount", "shift=2,sleep=off"),
    ),
}
"""QEMU's options, by name."""

ONE_THREAD = ("tcg-single", "tcg-icount")
"""Those in which one thread of the host runs all CPUs of a guest."""


@dataclass(frozen=True)
class Accelerator:
    """What runs the guests, and why."""

    name: Literal["kvm", "tcg", "tcg-single", "tcg-icount"]
    reason: str

    @property
    def options(self) -> tuple[str, ...]:
        """QEMU's options for it."""
        return OPTIONS[self.name]

    @property
    def real_time(self) -> bool:
        """Whether a guest's clock is that of the host."""
        return self.name != "tcg-icount"

    def cpu(self, arch: Arch) -> str:
        """Return the value of QEMU's ``-cpu``."""
        return arch.cpu_kvm if self.name == "kvm" else arch.cpu_tcg

    def append(self, arch: Arch) -> str:
        """Return the kernel parameters this accelerator needs."""
        return "" if self.name == "kvm" else arch.append_tcg


def emulates(wanted: Wanted, arch: Arch) -> bool:
    """Whether guests are emulated, whatever a boot under KVM would tell."""
    no_kvm = arch.name != platform.machine() or not KVM.exists()
    return wanted.startswith("tcg") or (wanted == "auto" and no_kvm)


def choose(
    wanted: Wanted, arch: Arch, tree: BootFiles, stock: Callable[[], BootFiles] | None = None
) -> Accelerator:
    """Return the accelerator for guests of ``arch`` that boot ``tree``.

    Where that is somebody's own kernel, ``stock`` returns one of Debian's. It may have to be
    fetched: where that fails, guests are emulated.

    Raises LightsleepError where KVM was asked for and does not work.
    """
    if wanted in ("tcg", "tcg-single", "tcg-icount"):
        return Accelerator(wanted, "asked for")
    found = _usable(arch, tree, stock)
    if wanted == "kvm" and found.name != "kvm":
        raise LightsleepError(
            f"KVM cannot be used: {found.reason}; use --accel tcg, or remove the folders kvm-* in "
            f"{cache.folder()} to have it tried again"
        )
    return found


def _usable(arch: Arch, tree: BootFiles, stock: Callable[[], BootFiles] | None) -> Accelerator:
    if arch.name != platform.machine():
        return Accelerator("tcg", f"a {arch.name} guest on a {platform.machine()} host")
    if not KVM.exists():
        return Accelerator("tcg", "no /dev/kvm")
    if not os.access(KVM, os.R_OK | os.W_OK):
        return Accelerator("tcg", "no permission for /dev/kvm: add the user to the group kvm")
    found = _judged(arch, tree)
    if found.name == "kvm" or stock is None:
        return found
    try:
        of_debian = stock()
    except LightsleepError as error:
        why = error.message.splitlines()[0]
        return replace(
            found,
            reason=f"{found.reason}, and there is none of Debian's to try KVM with: {why}",
        )
    of_stock = _judged(arch, of_debian)
    if of_stock.name != "kvm":
        return of_stock
    why = found.reason.removeprefix(BUT)
    return Accelerator("kvm", f"{of_stock.reason}, although {why}")


def _judged(arch: Arch, tree: BootFiles) -> Accelerator:
    """Return what probe() says, or has said since the host's boot."""

    def build(scratch: Path) -> None:
        verdict = probe(arch, tree)
        (scratch / "verdict.json").write_text(json.dumps(asdict(verdict)))

    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text()
    key = cache.digest(boot_id, emulator.version(arch), tree.key)
    return Accelerator(
        **json.loads((cache.entry(f"kvm-{key}", build, needs_mb=1) / "verdict.json").read_text())
    )


def probe(arch: Arch, tree: BootFiles) -> Accelerator:
    """Boot once under KVM and judge by what the console says."""
    argv = [
        *("setpriv", "--pdeathsig", "KILL"),
        *(arch.qemu, "-accel", "kvm", "-machine", arch.machine, "-cpu", arch.cpu_kvm),
        *("-smp", "2", "-m", f"{arch.memory_mib}M", "-display", "none"),
        *("-nodefaults", "-no-reboot"),
        *("-serial", "stdio", "-kernel", str(tree.image)),
        *("-append", f"console={arch.console} panic=-1"),
    ]
    with (
        tempfile.TemporaryFile() as console,
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            process_group=0,
        ) as process,
    ):
        try:
            outcome = _outcome(process, console.fileno(), f"kernel {tree.release}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        text = _said(console.fileno()).decode(errors="replace")
    if PROOF in text:
        return Accelerator("kvm", f"kernel {tree.release} boots under it")
    lines = [line for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if STOPPED.decode() in line] or lines
    last = f"last line: {lines[-1].strip()!r}" if lines else "before its first line of output"
    return Accelerator("tcg", f"{BUT}{outcome} ({last})")


def _outcome(process: subprocess.Popen[bytes], console: int, kernel: str) -> str:
    end = time.monotonic() + PROBE_S
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"QEMU, with {kernel}, ended with status {process.wait(timeout=0.1)}"
        if STOPPED in _said(console):
            return f"it stopped {kernel}"
    return f"{kernel} hung for {PROBE_S:.0f} s"


def _said(console: int) -> bytes:
    return os.pread(console, 1 << 20, 0)
