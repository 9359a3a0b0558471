# SPDX-License-Identifier: GPL-2.0-only
"""The kernel within a compressed x86 image."""

from __future__ import annotations

import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.lab.boot.unpacked import packed, unpacked

KERNEL = b"\x7fELF" + bytes(5000)
NOTE = struct.pack("<III4sQ", 4, 8, 18, b"Xen\0", 0x1000000)


def compressed(program: str, data: bytes) -> bytes:
    """Return ``data`` as a kernel's build packs it."""
    done = subprocess.run([program, "-c", "-q"], input=data, capture_output=True, check=True)
    size = b"" if program == "gzip" else struct.pack("<I", len(data))
    return done.stdout + size


def image(payload: bytes, setup_sectors: int = 3) -> bytes:
    """Return an x86 image with such a payload."""
    code = b"the code that unpacks it"
    head = bytearray(((setup_sectors or 4) + 1) * 512)
    head[0x1F1], head[0x202:0x206] = setup_sectors, b"HdrS"
    struct.pack_into("<II", head, 0x248, len(code), len(payload))
    return bytes(head) + code + payload + b"more code"


@dataclass
class Tree:
    """A kernel with this image."""

    image: Path
    key: str = "kernel"
    release: str = "6.12"
    modules: Path = Path("/nowhere")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv("LIGHTSLEEP_CACHE", str(tmp_path / "cache"))
    return Tree(tmp_path / "vmlinuz")


@pytest.mark.parametrize("setup_sectors", [0, 1, 27])
@pytest.mark.parametrize("program", ["zstd", "xz", "gzip"])
def test_the_kernel_within_is_started(tree: Tree, program: str, setup_sectors: int) -> None:
    tree.image.write_bytes(image(compressed(program, KERNEL + NOTE), setup_sectors))
    kernel = unpacked(tree)
    assert kernel.read_bytes() == KERNEL + NOTE
    assert [x.name for x in kernel.parent.iterdir()] == ["vmlinux"]
    tree.image.unlink()
    assert unpacked(tree) == kernel  # made once


@pytest.mark.parametrize(
    "content",
    [
        image(compressed("zstd", KERNEL)),  # without an entry point for PVH
        image(b"\x02!L\x18" + KERNEL),  # lz4
        image(b""),
        image(compressed("xz", KERNEL + NOTE))[:0x24C],
        b"MZ" + KERNEL + NOTE,
        b"",
    ],
)
def test_what_qemu_cannot_start_so_is_started_as_it_is(tree: Tree, content: bytes) -> None:
    tree.image.write_bytes(content)
    assert unpacked(tree) == tree.image
    assert unpacked(tree) == tree.image  # from the cache


@pytest.mark.parametrize("program", ["zstd", "xz", "gzip"])
def test_a_damaged_image_is_an_error_that_names_it(tree: Tree, program: str) -> None:
    whole = compressed(program, bytes(range(256)) * 40 + NOTE)
    tree.image.write_bytes(image(whole[: len(whole) // 2]))
    with pytest.raises(LightsleepError, match=f"unpacking {tree.image} failed"):
        unpacked(tree)


def test_an_image_that_ends_early_has_a_kernel_that_ends_early() -> None:
    whole = image(compressed("gzip", KERNEL))
    found = packed(whole[:2100])
    assert found is not None
    assert (found[0], len(found[2])) == ("gzip", 2100 - 2048 - 24)
