# SPDX-License-Identifier: GPL-2.0-only
"""One QEMU: started, paused, watched, and never left behind.

Nothing of a running VM is in the file system: QEMU inherits the sockets of its monitor and of
the agent, and writes the console to an anonymous file. The kernel kills QEMU when we die,
however we die, so there is nothing to clean up after a SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from qemu.qmp import QMPClient, QMPError

from lightsleep import cache
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.boot.accel import Accelerator
from lightsleep.lab.boot.inside.agent import PORT_NAME
from lightsleep.lab.boot.machine import Devices, Machine
from lightsleep.lab.kernels.config import Arch

QUIET = re.compile(r"(^|\s)(quiet|loglevel=\S*)(\s|$)")
"""Options of a kernel that may keep its warnings from the console."""

QMP_S = 20.0
MIGRATE_S = 120.0

SCRATCH = re.compile(r"\bscratch=(\d+)M\b")
"""Of a drive, what QEMU does not know: a file with so many MiB of noise."""
FORMAT = re.compile(r"\b(format|driver)=")
PAST_PAGE_CACHE = re.compile(r"\bcache(=none|\.direct=on)\b")
IN_MEMORY = {"tmpfs", "ramfs"}
"""Types of file systems, as stat(1) has them."""


def state_of(image: Path) -> tuple[int, int]:
    """Return when a file was written, and its size; no such of one that is not there."""
    with contextlib.suppress(FileNotFoundError):
        found = image.stat()
        return found.st_mtime_ns, found.st_size
    return 0, -1


@dataclass(frozen=True)
class Hardware:
    """What a VM is made of, and what it boots."""

    arch: Arch
    accelerator: Accelerator
    image: Path
    initramfs: Path
    root: Path
    machine: Machine = field(default_factory=Machine)
    interactive: bool = False
    devicetree: Path | None = None
    """In place of the machine's own."""
    firmware: Path | None = None
    """To boot by, where it is not QEMU that starts the kernel."""
    state: tuple[int, int] | None = None
    """state_of() the image as its modules were packed, where somebody named it; None: it stays."""
    release: str | None = None
    """What it is to be by its modules, where somebody named both; some images do not say."""

    def check_image(self) -> None:
        """Raise LightsleepError where the image is another by now."""
        if self.state is not None and self.state != state_of(self.image):
            raise LightsleepError(
                f"{self.image} is not the kernel that the modules of this guest were packed for: "
                "was it built anew meanwhile? Leave it as it is until the guests have ended"
            )

    def cmdline(self) -> str:
        """Return the guest's kernel command line; a panic ends the VM at once."""
        parts = [f"console={self.arch.console}", "panic=-1", "oops=panic"]
        parts.append(self.accelerator.append(self.arch))
        # A warning of the kernel is to fail the run. These keep it from the console: what somebody
        # configured as the default of their own kernel, and quiet. The last such option counts: who
        # appends debug gets all of it.
        if not self.interactive and self.machine.foreign:
            # By its times, too, a line of the kernel is told from what firmware prints.
            parts.append("printk.time=1 loglevel=7")
        parts.append(self.machine.append)
        if not self.interactive and QUIET.search(self.machine.append):
            parts.append("loglevel=7")
        return " ".join(part for part in parts if part)

    def argv(self) -> list[str]:
        """Return QEMU's command line, without monitor, agent and console."""
        return [
            *(self.arch.qemu, "-machine", self.arch.machine, *self.accelerator.options),
            *("-cpu", self.accelerator.cpu(self.arch)),
            *("-smp", self.machine.smp),
            *("-m", f"{self.arch.memory_mib}M", "-display", "none", "-nodefaults", "-no-reboot"),
            *("-kernel", str(self.image), "-initrd", str(self.initramfs)),
            *("-append", self.cmdline()),
            *(("-dtb", str(self.devicetree)) if self.devicetree else ()),
            *(("-bios", str(self.firmware)) if self.firmware else ()),
            *(
                "-drive",
                f"file={str(self.root).replace(',', ',,')},if=none,id=root,format=raw,readonly=on",
            ),
            *(word for device in self.arch.bridges for word in ("-device", device)),
            *("-device", f"virtio-blk-pci,drive=root,bus={self.arch.bus}"),
            *("-device", f"virtio-serial-pci,bus={self.arch.bus}"),
            *(
                word
                for option, value in self.machine.devices.options()
                for word in (f"-{option}", f"if=none,{value}" if option == "drive" else value)
            ),
        ]


class VM:
    """A running QEMU."""

    def __init__(self, hardware: Hardware, waits: bool = False) -> None:
        """Start QEMU; with ``waits``, restore() says what it is to run.

        Raises LightsleepError where the program or space for a file is missing, or the image is
        another by now.
        """
        hardware.check_image()
        host.need(hardware.arch.qemu, packages={hardware.arch.qemu: hardware.arch.qemu_package})
        self.hardware = hardware
        self.agent, agent = socket.socketpair()
        ours, theirs = socket.socketpair()
        # Apart, so that a warning of QEMU's is not taken for one of the kernel's.
        self._console, self._said = os.memfd_create("console"), os.memfd_create("said")
        console = f"file,path=/dev/fd/{self._console},append=on"
        devices, files = with_files(hardware.machine.devices)
        hardware = replace(hardware, machine=replace(hardware.machine, devices=devices))
        argv = [
            *("setpriv", "--pdeathsig", "KILL", *hardware.argv()),
            *("-chardev", f"socket,id=agent,fd={agent.fileno()}"),
            *("-device", f"virtserialport,chardev=agent,name={PORT_NAME}"),
            *("-chardev", f"socket,id=qmp,fd={theirs.fileno()}", "-mon", "qmp,mode=control"),
            *(
                "-chardev",
                f"{'stdio,mux=on,signal=off' if hardware.interactive else console},id=console",
            ),
            *("-serial", "chardev:console"),
            *(("-incoming", "defer") if waits else ()),
        ]
        stdio = None if hardware.interactive else subprocess.DEVNULL
        self.process = subprocess.Popen(
            argv,
            stdin=stdio,
            stdout=stdio,
            stderr=None if hardware.interactive else self._said,
            pass_fds=(agent.fileno(), theirs.fileno(), self._console, *files),
            # Out of reach of Ctrl-C, except where the terminal is the guest's.
            process_group=None if hardware.interactive else 0,
        )
        for file in files:
            os.close(file)
        agent.close()
        theirs.close()
        self._loop = asyncio.Runner()
        self._qmp = QMPClient()
        self._monitor: socket.socket | None = ours

    def qmp(self, command: str, arguments: dict[str, object] | None = None) -> Any:
        """Return the result of a monitor command. Raises LightsleepError where QEMU refuses."""

        async def execute() -> object:
            if self._monitor is not None:
                await self._qmp.connect(self._monitor)
                self._monitor = None
            return await self._qmp.execute(command, arguments)

        try:
            return self._loop.run(asyncio.wait_for(execute(), QMP_S))
        except (QMPError, OSError, TimeoutError) as error:
            raise LightsleepError(f"QEMU failed to execute {command!r}: {error!r}") from error

    def pause(self) -> None:
        """Stop all CPUs; the guest's clocks stand still."""
        self.qmp("stop")

    def resume(self) -> None:
        """Let the CPUs run on."""
        self.qmp("cont")

    def save(self, memory: Path, console: Path) -> None:
        """Write all of the guest, and what it has printed, for restore() of another VM.

        It runs on when this is done, or has failed. Raises LightsleepError for ``memory``, OSError
        for ``console``.
        """
        self.pause()
        soon = memory.with_name(f"{memory.name}.{os.getpid()}")
        try:
            console.write_text(self.console())
            self._migrate("migrate", soon)
            soon.rename(memory)
        finally:
            soon.unlink(missing_ok=True)
            self.resume()

    def restore(self, memory: Path, console: Path) -> None:
        """Be the guest that save() wrote, and run on, in a VM that waits for it.

        Raises LightsleepError where that fails, OSError for ``console``.
        """
        os.write(self._console, console.read_bytes())  # to its end, as QEMU does
        self._migrate("migrate-incoming", memory)
        self.resume()

    def _migrate(self, command: str, file: Path) -> None:
        """Write or read a file as if it were the way to another host."""
        # Each page has its place there, whose holes take no space.
        capability = {"capability": "mapped-ram", "state": True}
        self.qmp("migrate-set-capabilities", {"capabilities": [capability]})
        self.qmp(command, {"uri": f"file:{file}"})
        deadline = time.monotonic() + MIGRATE_S
        while (state := self.qmp("query-migrate")).get("status") != "completed":
            if state.get("status") == "failed" or time.monotonic() > deadline:
                why = state.get("error-desc", f"not done after {MIGRATE_S:g} s")
                raise LightsleepError(f"QEMU failed to {command} {file}: {why}")
            time.sleep(0.02)

    def vcpu_threads(self) -> list[int]:
        """Return the host thread ids of the vCPUs, each once: they may all be in one."""
        return list(dict.fromkeys(cpu["thread-id"] for cpu in self.qmp("query-cpus-fast")))

    def console(self) -> str:
        """Return everything the guest has printed."""
        return _content(self._console)

    def said(self) -> str:
        """Return what QEMU itself has printed."""
        return _content(self._said)

    def ended(self, within_s: float = 0) -> int | None:
        """Return QEMU's exit status, or None if it still runs after ``within_s``."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(within_s)
        return None

    def close(self) -> None:
        """End QEMU, whatever state it is in, and release what it held. May be called twice."""
        self.process.terminate()  # gives a terminal its settings back
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with contextlib.suppress(Exception):
            self._loop.run(self._qmp.disconnect())
        self._loop.close()
        self.agent.close()
        if self._monitor is not None:
            self._monitor.close()
        if self._console >= 0:
            os.close(self._console)
            os.close(self._said)
            self._console = self._said = -1


def _content(file: int) -> str:
    size = os.fstat(file).st_size
    return os.pread(file, size, 0).decode(errors="replace").replace("\r\n", "\n")


def in_memory(folder: Path) -> bool:
    """Return whether what is written into a folder is in memory only."""
    stat = ["stat", "--file-system", "--format=%T", str(folder)]
    return host.run(stat, "asking for the type of a file system").strip() in IN_MEMORY


def with_files(devices: Devices) -> tuple[Devices, list[int]]:
    """Return devices as QEMU takes them, and descriptors of the files that it opens for them.

    The files have no names: the kernel removes each when nobody has it open any more. They are in
    the folder of the cache, so that they are on a disk. Raises LightsleepError where they do not
    fit, and where one that is to be used past the page cache would be in memory.
    """
    past_page_cache = any(SCRATCH.search(x) and PAST_PAGE_CACHE.search(x) for x in devices.drive)
    if past_page_cache and in_memory(cache.folder()):
        raise LightsleepError(
            f"the cache folder {cache.folder()} is in memory, and a drive is to be a file on a "
            "disk (cache=none): set LIGHTSLEEP_CACHE to a folder on a disk"
        )
    files: list[int] = []

    def file_of(match: re.Match[str]) -> str:
        with tempfile.TemporaryFile(dir=cache.folder()) as file:
            # What was never written would be read without asking the disk.
            for _ in range(int(match[1])):
                file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())
            files.append(os.dup(file.fileno()))
        return f"file=/dev/fd/{files[-1]}"

    def drive_of(drive: str) -> str:
        # Whoever names no format gets the file as it is: QEMU would look into it, and warn.
        raw = SCRATCH.search(drive) and not FORMAT.search(drive)
        return SCRATCH.sub(file_of, drive) + (",format=raw" if raw else "")

    try:
        return replace(devices, drive=tuple(map(drive_of, devices.drive))), files
    except OSError as error:
        for file in files:
            os.close(file)
        raise LightsleepError(
            f"cannot create a drive's file under {cache.folder()}: {error}"
        ) from error
