# SPDX-License-Identifier: GPL-2.0-only
"""What the lab can boot: architectures and kernels, as data.

A new architecture or kernel is a new row here and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from lightsleep.errors import LightsleepError

T = TypeVar("T")


@dataclass(frozen=True)
class Kernel:
    """A distribution kernel, named by meta-packages so that it is the newest point release."""

    name: str
    suite: str
    """The suite that the tools around the kernel come from."""
    target: str
    """The suite that the kernel itself comes from: ``suite``, or its backports."""
    image: str
    headers: str


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel that the lab builds, configured for what no packaged one offers."""

    name: str
    purpose: str
    """What it has that packaged ones have not."""
    suite: str
    """The suite that source and compiler come from."""
    version: str
    """The series of the source."""
    fragments: tuple[str, ...]
    """Files of ``fragments/`` that configure it, on top of the base and the architecture's.

    What is for one architecture only is in a file of its own, NAME.ARCH.config.
    """
    target: str = field(default="", repr=False)
    """The suite's backports, where the source comes from there."""
    patched: bool = field(default=False, repr=False)
    """Whether it has our series of patches for this version (see series.py)."""
    make: tuple[str, ...] = ()
    """Variables for make, which no option of the configuration stands for."""


def _by_name(*kernels: Kernel) -> dict[str, Kernel]:
    return {kernel.name: kernel for kernel in kernels}


KERNELS = _by_name(
    Kernel(
        name="6.12",
        suite="bookworm",
        target="bookworm",
        image="linux-image-6.12-cloud-{debian}",
        headers="linux-headers-6.12-cloud-{debian}",
    ),
    Kernel(
        name="6.1",
        suite="bookworm",
        target="bookworm",
        image="linux-image-cloud-{debian}",
        headers="linux-headers-cloud-{debian}",
    ),
    Kernel(
        name="backports",
        suite="trixie",
        target="trixie-backports",
        image="linux-image-cloud-{debian}",
        headers="linux-headers-cloud-{debian}",
    ),
    Kernel(
        name="rc",
        suite="sid",
        target="experimental",
        image="linux-image-cloud-{debian}",
        headers="linux-headers-cloud-{debian}",
    ),
    Kernel(
        name="6.12-rt",
        suite="bookworm",
        target="bookworm",
        image="linux-image-6.12-rt-{debian}",
        headers="linux-headers-6.12-rt-{debian}",
    ),
)
"""Those for clouds, which have few drivers, and one with PREEMPT_RT; not every architecture has
them. Those of backports and experimental are whichever are newest there; experimental's mostly is a
release candidate."""

POWERPC_KERNELS = _by_name(
    Kernel(
        name="6.12",
        suite="trixie",
        target="trixie",
        image="linux-image-powerpc64le",
        headers="linux-headers-powerpc64le",
    ),
    Kernel(
        name="6.1",
        suite="bookworm",
        target="bookworm",
        image="linux-image-powerpc64le",
        headers="linux-headers-powerpc64le",
    ),
)
"""Those for every machine. bookworm's own 6.12 is one of its security updates, which not every
mirror has in time for this architecture; trixie's is part of the release."""


def _with_and_without(*ours: BuiltKernel) -> list[BuiltKernel]:
    """Return kernels with our series, each followed by one to compare it with."""
    return [
        row
        for with_it in ours
        for row in (
            with_it,
            replace(
                with_it,
                name=f"{with_it.version}-plain",
                purpose=f"all that {with_it.name} has, but the patches",
                fragments=(*with_it.fragments[: with_it.fragments.index("series")], "plain"),
                patched=False,
            ),
        )
    ]


SERIES_KERNELS = _with_and_without(
    BuiltKernel(
        name="6.12-series",
        purpose="our series of patches",
        suite="bookworm",
        version="6.12",
        fragments=("common", "series"),
        patched=True,
    ),
    BuiltKernel(
        name="7.3-series",
        purpose="our series of patches",
        suite="trixie",
        target="trixie-backports",
        version="7.3",
        fragments=("7.3", "common", "series"),
        patched=True,
    ),
)

X86_KERNELS = (
    BuiltKernel(
        name="6.12-teo",
        purpose="the idle governor teo",
        suite="bookworm",
        version="6.12",
        fragments=("teo",),
    ),
    BuiltKernel(
        name="6.12-debug",
        purpose="lockdep, KASAN and other checks",
        suite="bookworm",
        version="6.12",
        fragments=("debug",),
    ),
    BuiltKernel(
        name="6.12-series-rt",
        purpose="our series of patches, PREEMPT_RT, and CPUs without the tick",
        suite="bookworm",
        version="6.12",
        fragments=("common", "series", "rt"),
        patched=True,
    ),
    BuiltKernel(
        name="6.12-series-debug",
        purpose="our series of patches, lockdep, KASAN and other checks",
        suite="bookworm",
        version="6.12",
        fragments=("common", "series", "debug", "series-debug"),
        patched=True,
    ),
    BuiltKernel(
        name="6.12-series-kcsan",
        purpose="our series of patches, and KCSAN, which looks for data races",
        suite="bookworm",
        version="6.12",
        fragments=("common", "series", "kcsan"),
        patched=True,
        make=("KCSAN_SANITIZE_idle_poll.o=y",),  # the scheduler leaves out its whole folder
    ),
)


def _built(*kernels: BuiltKernel) -> dict[str, BuiltKernel]:
    return {kernel.name: kernel for kernel in kernels}


@dataclass(frozen=True)
class Arch:
    """A guest architecture: its names, its kernels, and how QEMU is told to emulate it."""

    name: str
    """As ``uname -m`` prints it."""
    debian: str
    triplet: str
    """As its compiler is named."""
    kbuild: str
    """As the kernel's source names its folder."""
    kernels: Mapping[str, Kernel]
    """Packaged ones, booted as they are."""
    qemu: str
    qemu_package: str
    machine: str
    cpu_tcg: str
    cpu_kvm: str
    console: str
    built: Mapping[str, BuiltKernel] = field(default_factory=dict)
    """Those built here."""
    built_image: str = ""
    """Where a built tree of the kernel has what QEMU starts."""
    append_tcg: str = ""
    """Kernel parameters that emulation needs, in every arm alike."""
    bus: str = "pcie.0"
    """The PCI bus with room for devices."""
    bridges: tuple[str, ...] = ()
    """Devices that make this bus, where the machine has none."""
    memory_mib: int = 512
    snapshots: bool = False
    """Whether a guest goes on from a snapshot of it (see snapshot.py)."""
    psci_machine: str = ""
    """The machine to describe an idle state to, where that can be."""
    efi_package: str = ""
    """The package of the UEFI firmware that such a machine needs for ACPI."""
    efi_image: str = ""
    """The firmware in this package."""

    @property
    def bootable(self) -> dict[str, Kernel | BuiltKernel]:
        """All its kernels, by name."""
        return {**self.kernels, **self.built}

    @property
    def compiler_package(self) -> str:
        """The package of the compiler that builds for it on another architecture."""
        return f"gcc-{self.triplet.replace('_', '-')}"


ARCHES = {
    arch.name: arch
    for arch in (
        Arch(
            name="x86_64",
            debian="amd64",
            triplet="x86_64-linux-gnu",
            kbuild="x86",
            built_image="arch/x86/boot/bzImage",
            kernels=KERNELS,
            qemu="qemu-system-x86_64",
            qemu_package="qemu-system-x86",
            machine="q35",
            # QEMU's emulated MWAIT spins when there is more than one CPU: hide it, so that the
            # guest halts as it does under a hypervisor that hides it.
            cpu_tcg="max,-monitor",
            cpu_kvm="host",
            console="ttyS0",
            built=_built(*SERIES_KERNELS, *X86_KERNELS),
            snapshots=True,
            # All emulated CPUs share one clock, but nothing tells the kernel so: without this
            # it falls back to the HPET, whose every read leaves the guest.
            append_tcg="tsc=reliable",
        ),
        Arch(
            name="aarch64",
            debian="arm64",
            triplet="aarch64-linux-gnu",
            kbuild="arm64",
            built_image="arch/arm64/boot/Image",
            kernels=KERNELS,
            qemu="qemu-system-aarch64",
            qemu_package="qemu-system-arm",
            machine="virt,gic-version=3",
            # With GICv3, Linux disables the CPU's interrupts before such a state and relies on a
            # power controller to wake the CPU, which QEMU lacks.
            psci_machine="virt,gic-version=2",
            efi_package="qemu-efi-aarch64",
            efi_image="usr/share/qemu-efi-aarch64/QEMU_EFI.fd",
            # Pointer authentication by the architecture's own cipher is slow to emulate.
            cpu_tcg="max,pauth-impdef=on",
            cpu_kvm="host",
            console="ttyAMA0",
            built=_built(*SERIES_KERNELS),
            snapshots=True,
        ),
        Arch(
            name="ppc64le",
            debian="ppc64el",
            triplet="powerpc64le-linux-gnu",
            kbuild="powerpc",
            built_image="vmlinux",
            kernels=POWERPC_KERNELS,
            qemu="qemu-system-ppc64",
            qemu_package="qemu-system-ppc",
            machine="powernv9",
            cpu_tcg="power9",
            cpu_kvm="host",
            console="hvc0",
            built=_built(*SERIES_KERNELS),
            memory_mib=1024,  # the machine refuses less
            bus="pci",
            bridges=(
                "pnv-phb,id=phb",
                "pnv-phb-root-port,id=root,bus=phb",
                "pci-bridge,id=pci,bus=root,chassis_nr=1,shpc=off",
            ),
        ),
    )
}

BUILD_TOOLS = (
    *("make", "binutils", "dash", "bash", "coreutils", "sed", "grep", "mawk"),
    *("findutils", "diffutils", "perl"),
)
"""What a kernel's own build of an external module runs, beyond what its headers depend on; perl,
with W=1, to read comments that are documentation."""

KERNEL_TOOLS = ("libc6-dev", "libelf-dev", "flex", "bison", "bc", "gzip", "tar", "kmod")
"""What the build of a kernel runs on top."""

GUEST_SUITE = "trixie"
"""The oldest suite whose perf knows ``bench sched seccomp-notify``."""

GUEST_PACKAGES = (
    *("base-files", "dash", "bash", "coreutils", "grep", "sed", "util-linux", "procps", "kmod"),
    *("busybox-static", "linux-perf", "python3-minimal", "python3-click", "python3-rich"),
    *("fio", "sockperf", "rt-tests", "trace-cmd"),
)

PROGRAM_PACKAGES = (
    *("redis-server", "redis-tools", "nginx", "wrk", "memcached", "libmemcached-tools"),
    *("postgresql-17", "postgresql-client-17", "unbound", "dnsperf", "knot-dnsutils"),
    *("mosquitto", "mosquitto-clients"),
)
"""Servers, and what puts load on them (see ``programs/``)."""

ROOTS: Mapping[str, tuple[str, ...]] = {
    "base": GUEST_PACKAGES,
    "programs": (*GUEST_PACKAGES, *PROGRAM_PACKAGES),
}
"""Root file systems of guests, by name, and the packages in each."""

DRIVERS = ("virtio_pci", "virtio_blk", "virtio_console", "squashfs", "overlay")
"""Modules a cloud kernel needs, beyond what it has built in, to reach the guest's root."""

NEEDED_OPTIONS = (
    *("BLK_DEV_INITRD", "DEVTMPFS", "TMPFS", "PROC_FS", "SYSFS", "BINFMT_ELF", "BINFMT_SCRIPT"),
    *("UNIX", "VIRTIO_PCI", "VIRTIO_BLK", "VIRTIO_CONSOLE"),
    *("SQUASHFS", "SQUASHFS_ZLIB", "OVERLAY_FS"),
)
"""Options of a kernel's configuration without which no guest comes up; y or m."""

USEFUL_DRIVERS = ("virtio_net",)
"""Modules that experiments use; a kernel built here may be without."""


def lookup(kind: str, table: Mapping[str, T], name: str) -> T:
    """Return ``table[name]``. Raises LightsleepError that lists what there is."""
    if name not in table:
        raise LightsleepError(f"no {kind} {name!r}; there are: {', '.join(table)}")
    return table[name]
