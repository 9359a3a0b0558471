# SPDX-License-Identifier: GPL-2.0-only
"""Reads /sys, /proc and /dev, or a recording of them, and never trips over what it finds.

In a container half of the files are masked; without root some are unreadable; a CPU that goes
offline takes its folder along between two reads; a recording may hold anything. So a reader
answers None for what is not there, notes what is there but unusable, and keeps what it read,
which is then exactly what a recording must hold.
"""

import contextlib
import errno
import functools
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path

from lightsleep import cpulist
from lightsleep.errors import LightsleepError

# sysfs files end at a page; of /proc/cpuinfo the first CPU is enough.
MAX_BYTES = 2**20
# Every row counts, and the kernel's own stand last: 2000 rows for 2048 CPUs are 45 MiB.
MAX_INTERRUPTS_BYTES = 2**26
# The only device that is ever read, of the running machine only. A recording has a file.
LATENCY_LIMIT = "dev/cpu_dma_latency"
# Linux' /dev/null, which container runtimes mount on each file that they mask.
NULL = os.makedev(1, 3)
# What a read may return takes memory, even if the file is short.
CHUNK = 2**18
# No counter of the kernel is wider than 64 bits.
MAX_NUMBER = 2**64 - 1
# Of one path, as the kernel has it.
MAX_LINKS = 40


@dataclass
class Tree:
    """A root folder, the files read below it and what was wrong with them.

    No link leads out of the folder: what a stranger's recording links to is not this machine's.
    ``fallback`` answers for files that are missing: what a system call tells about the running
    machine when its /proc is masked.
    """

    root: Path
    fallback: dict[str, str] = field(default_factory=dict)
    read: dict[str, bytes] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    @functools.cached_property
    def _running(self) -> bool:
        """Whether this is the running machine."""
        return self.root.resolve() == Path("/")

    def at(self, path: str) -> Path:
        """Return where a file is. Raises OSError where links lead in a circle."""
        return self.root / path if self._running else followed(self.root, path)

    def content(self, path: str, most: int = MAX_BYTES) -> bytes | None:
        """Return up to ``most`` bytes of a file, None where it is missing or cannot be read."""
        content = self._read(path, most)
        if content is None and path in self.fallback:
            content = self.fallback[path].encode()
        if content is not None:
            self.read[path] = content
        return content

    def _read(self, path: str, most: int) -> bytes | None:
        # What a recording calls so may be any device, and some begin to act when opened.
        devices = path == LATENCY_LIMIT and self._running
        try:
            return read_bounded(self.at(path), most, devices)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.problems[path] = error.strerror or str(error)
            return None

    def text(self, path: str, most: int = MAX_BYTES) -> str | None:
        """Return a file as printable text without surrounding white space."""
        content = self.content(path, most)
        if content is None:
            return None
        return printable(content.decode("utf-8", errors="replace").strip())

    def line(self, path: str) -> str | None:
        """Return the first line of a file, cut to a length no kernel name exceeds."""
        text = self.text(path)
        return text.partition("\n")[0][:64] if text else None

    def number(self, path: str) -> int | None:
        """Return a file that holds one decimal number from 0 to 2^64-1."""
        text = self.text(path)
        if text is None:
            return None
        if re.fullmatch(r"[0-9]{1,20}", text) and int(text) <= MAX_NUMBER:
            return int(text)
        self.problems[path] = f"not a number: {text[:20]!r}"
        return None

    def signed(self, path: str) -> int | None:
        """Return a file that holds one decimal number from -2^63 to 2^63-1."""
        text = self.text(path)
        if text is None:
            return None
        if re.fullmatch(r"-?[0-9]{1,19}", text) and -(2**63) <= int(text) < 2**63:
            return int(text)
        self.problems[path] = f"not a number: {text[:20]!r}"
        return None

    def flag(self, path: str) -> bool | None:
        """Return a file that holds a kernel boolean: Y, N, 0 or 1."""
        text = self.text(path)
        if text is None:
            return None
        if text in ("Y", "N", "0", "1"):
            return text in ("Y", "1")
        self.problems[path] = f"not a boolean: {text[:20]!r}"
        return None

    def cpus(self, path: str) -> list[int] | None:
        """Return a file that holds a CPU list."""
        text = self.text(path)
        if text is None or text == "(null)":
            return None
        try:
            return cpulist.parse(text)
        except LightsleepError:
            self.problems[path] = f"not a CPU list: {text[:20]!r}"
            return None

    def exists(self, path: str) -> bool:
        """Return whether there is a file or folder; a recording has no more than was read."""
        try:
            return self.at(path).exists()
        except OSError:
            return False

    def is_file(self, path: str) -> bool:
        """Return whether there is a file that is no folder, device or pipe."""
        try:
            return self.at(path).is_file()
        except OSError:
            return False

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a folder, none where it is missing or unreadable."""
        with contextlib.suppress(OSError):
            return sorted(entry.name for entry in self.at(path).iterdir())
        return []


def followed(root: Path, path: str) -> Path:
    """Return where ``path`` leads below ``root``, as in a chroot, whatever links are on the way.

    Raises OSError where links lead in a circle.
    """
    at: list[str] = []
    names, links = path.split("/"), 0
    while names:
        name = names.pop(0)
        if name == "..":
            del at[-1:]
        elif name not in ("", "."):
            at.append(name)
            try:
                target = os.readlink(os.path.join(root, *at))  # noqa: PTH115, PTH118 (quick)
            except OSError as error:
                if error.errno == errno.EINVAL:  # no link
                    continue
                break  # not there, and so is all that follows
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            at = [] if target.startswith("/") else at[:-1]
            names = [*target.split("/"), *names]
    return root.joinpath(*at, *names)


def status_of(path: Path) -> os.stat_result | None:
    """Return what is at ``path``, None where nothing is.

    Raises OSError where that cannot be seen, as without permission. Since Python 3.14, exists() and
    is_dir() of a path answer no there.
    """
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def printable(text: str) -> str:
    """Return text that a terminal does not obey, whatever a damaged file holds."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)


def read_bounded(path: Path, most: int, devices: bool = False) -> bytes:
    """Return up to ``most`` bytes of a file, or of a character device where ``devices`` are read.

    Raises OSError, also for anything else than a file; FileNotFoundError for /dev/null.
    """
    # Before it is opened: to open /dev/watchdog starts it, and the machine is reset a minute later.
    _check_type(path.stat(), devices)
    # O_NONBLOCK: a FIFO in a recording must not hang the scan.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check_type(os.fstat(descriptor), devices)
        return _read_all(descriptor, most)
    finally:
        os.close(descriptor)


def _check_type(found: os.stat_result, devices: bool) -> None:
    is_device = stat.S_ISCHR(found.st_mode)
    if is_device and found.st_rdev == NULL:
        raise FileNotFoundError(errno.ENOENT, "masked")
    if not (stat.S_ISREG(found.st_mode) or (devices and is_device)):
        raise OSError(errno.EINVAL, "not a file")


def _read_all(descriptor: int, most: int) -> bytes:
    """Return up to ``most`` bytes; procfs hands out a file a page at a time."""
    content = bytearray()
    while len(content) < most:
        chunk = os.read(descriptor, min(most - len(content), CHUNK))
        if not chunk:
            break
        content += chunk
    return bytes(content)
