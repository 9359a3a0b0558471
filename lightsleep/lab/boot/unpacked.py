# SPDX-License-Identifier: GPL-2.0-only
"""The kernel within a compressed x86 image, for QEMU to start at once.

An image unpacks itself as it starts, which takes an emulated CPU some two seconds of each boot.
The kernel within is an ELF file, and QEMU starts one that has an entry point for PVH, the way in
which a hypervisor starts a kernel without firmware's help: Debian's have it. What runs from there
on is the same, at the same addresses in each boot: it is the code that unpacks the kernel which
draws where it lies, and tells it to draw the rest (KASLR). A comparison is to draw them anew in
each boot, so this is for tests.

Where an image is: "The Linux/x86 Boot Protocol", Documentation/arch/x86/boot.rst. How a kernel
says that it can be started so: XEN_ELFNOTE_PHYS32_ENTRY, include/xen/interface/elfnote.h.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.kernels.roots import BootFiles

SECTOR = 512
SIZE = 4
"""Bytes after the packed kernel that say how large it is, where its format does not."""
FORMATS = {
    b"\x28\xb5\x2f\xfd": ("zstd", ".zst", SIZE),
    b"\xfd7zXZ\x00": ("xz", ".xz", SIZE),
    b"\x1f\x8b": ("gzip", ".gz", 0),
}
"""First bytes -> the program that unpacks them, what it wants files to be called, what follows."""
PVH_NOTE = re.compile(rb"\x04\0\0\0[\x04\x08]\0\0\0\x12\0\0\0Xen\0")
"""Lengths of name and content, type 18, name."""


def unpacked(tree: BootFiles) -> Path:
    """Return the kernel within the image of ``tree``; the image where QEMU cannot start it.

    Made once, in less than a second. Raises LightsleepError where the disk is full, or the image is
    damaged.
    """

    def build(scratch: Path) -> None:
        found = packed(tree.image.read_bytes())
        if found is None:
            return
        program, suffix, data = found
        kernel = scratch / "vmlinux"
        file = kernel.with_suffix(suffix)
        file.write_bytes(data)
        host.run([program, "-d", "-f", "--quiet", file], f"unpacking {tree.image}")
        file.unlink(missing_ok=True)  # zstd keeps it
        if not PVH_NOTE.search(kernel.read_bytes()):
            kernel.unlink()

    kernel = cache.entry(f"vmlinux-{cache.digest(tree.key)}", build, needs_mb=100) / "vmlinux"
    return kernel if kernel.exists() else tree.image


def packed(image: bytes) -> tuple[str, str, bytes] | None:
    """Return what unpacks the kernel within an x86 ``image``, its file's suffix, and the kernel.

    None where it is no such image, or packed in another format.
    """
    if image[0x202:0x206] != b"HdrS" or len(image) < 2 * SECTOR:
        return None
    setup = image[0x1F1] or 4  # sectors
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup + 1) * SECTOR + offset
    data = image[start : start + length]
    for magic, (program, suffix, after) in FORMATS.items():
        if data.startswith(magic):
            return program, suffix, data[: len(data) - after]
    return None
