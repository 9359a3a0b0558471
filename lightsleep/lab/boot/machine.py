# SPDX-License-Identifier: GPL-2.0-only
"""What a guest is made of, in the words of the command line: every option has one field here."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from lightsleep.lab.boot.accel import Wanted

Described = Literal["no", "devicetree", "acpi"]

BOOT_S = 120.0
"""How long a guest may take to boot, where nobody says: a busy host may need longer."""


@dataclass(frozen=True)
class Devices:
    """Devices on top of those that the lab needs: each item as QEMU's option of that name has it.

    The order of the fields is the order on QEMU's command line: what is referred to comes first.
    """

    object: tuple[str, ...] = ()
    """What serves devices, such as threads."""
    netdev: tuple[str, ...] = ()
    """What network devices are connected to."""
    drive: tuple[str, ...] = ()
    """What devices store their data in, without ``if=``; ``scratch=64M`` in place of ``file=`` is
    a file of this size on the host, of one guest alone."""
    device: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is no tuple: letters would be taken for items. Raises ValueError."""
        for option in fields(self):
            given = getattr(self, option.name)
            if not isinstance(given, tuple):
                items = tuple(given) if isinstance(given, list) else (given,)
                raise ValueError(
                    f"Devices: {option.name} is a {type(given).__name__}, not a tuple: write "
                    f"{items}"
                )

    def __add__(self, other: Devices) -> Devices:
        """Return the devices of both."""
        return Devices(*(getattr(self, x.name) + getattr(other, x.name) for x in fields(self)))

    def options(self) -> Iterator[tuple[str, str]]:
        """Yield the name of an option and its value, for each item."""
        for option in fields(self):
            for item in getattr(self, option.name):
                yield option.name, item


@dataclass(frozen=True)
class ForeignKernel:
    """A kernel that the lab neither fetched nor built: a built tree, or an image and modules."""

    tree: Path | None = None
    image: Path | None = None
    modules: Path | None = None
    """``/lib/modules/RELEASE`` of the image, or the folder in which modules were installed."""

    def __post_init__(self) -> None:
        """Refuse what names no kernel, or two, and what is no path. Raises ValueError."""
        for part in fields(self):
            given = getattr(self, part.name)
            if not (given is None or isinstance(given, Path)):
                raise ValueError(
                    f"ForeignKernel: {part.name} is no Path: write Path({str(given)!r})"
                )
        if (self.tree is None) == (self.image is None):
            raise ValueError("ForeignKernel: name a tree, or an image and its modules")

    def options(self) -> Iterator[tuple[str, str]]:
        """Yield the options of the command line that name it."""
        for option, path in (
            ("kernel-tree", self.tree),
            ("image", self.image),
            ("modules", self.modules),
        ):
            if path:
                yield option, str(path)


@dataclass(frozen=True)
class Machine:
    """What to boot."""

    arch: str = "x86_64"
    kernel: str = "6.12"
    """The name of a kernel of the lab; of no meaning with a foreign one."""
    foreign: ForeignKernel | None = None
    append: str = ""
    modules: tuple[str, ...] = ()
    """Modules of ours to load: "name" or "name parameter=value ..."."""
    vcpus: int = 2
    threads: int = 1
    """Of each core; ``vcpus`` are threads."""
    accel: Wanted = "auto"
    devices: Devices = field(default_factory=Devices)
    cpu: str = ""
    """The model of its CPUs, as QEMU's ``-cpu`` has it; empty: the architecture's own."""
    idle_state: Described = "no"
    """Whether, and how, its firmware describes an idle state on top of WFI (aarch64)."""
    root: str = "base"
    """Its root file system, a name of ROOTS."""
    pin: bool = False
    """Whether each vCPU stays on one CPU of the host."""
    boot_timeout: float = BOOT_S
    """Seconds it may take to boot. A guest that takes longer has failed."""

    @property
    def smp(self) -> str:
        """Its CPUs, cores and threads, as QEMU's ``-smp`` has them."""
        return f"{self.vcpus},cores={self.vcpus // self.threads},threads={self.threads}"

    def command(self) -> str:
        """Return the command that boots this machine to a prompt."""
        options = [("arch", self.arch)]
        options += self.foreign.options() if self.foreign else [("kernel", self.kernel)]
        options += [("append", self.append)] if self.append else []
        options += [("module", module) for module in self.modules]
        options += self.devices.options()
        plain = Machine()
        for name in ("vcpus", "threads", "accel", "cpu", "idle_state", "root"):
            if getattr(self, name) != getattr(plain, name):
                options.append((name.replace("_", "-"), str(getattr(self, name))))
        if self.boot_timeout != plain.boot_timeout:
            options.append(("boot-timeout", f"{self.boot_timeout:g}s"))
        words = [word for name, value in options for word in (f"--{name}", value)]
        return shlex.join(["lightsleep", "lab", "shell", *words, *(["--pin"] * self.pin)])
