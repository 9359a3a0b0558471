# SPDX-License-Identifier: GPL-2.0-only
"""Writing a trace.dat around pages of the kernel's ring buffer (trace-cmd.dat.v6(5))."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from itertools import groupby, islice
from pathlib import Path
from typing import Any, BinaryIO

from lightsleep.namespaces import MACHINE_NAMESPACES
from lightsleep.record.bpf.pages import PAGE, PAGE_HEADER

MAGIC = b"\x17\x08\x44tracing6\0"
OPTIONS, RECORDS = b"options  \0", b"flyrecord\0"
TRACECLOCK, UNAME = 4, 5
LONG = 8

HEADER_PAGE = (
    "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n"
    "\tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n"
    "\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n"
    f"\tfield: char data;\toffset:{PAGE_HEADER};\tsize:{PAGE - PAGE_HEADER};\tsigned:1;\n"
)
HEADER_EVENT = (
    "# compressed entry header\n"
    "\ttype_len    :    5 bits\n\ttime_delta  :   27 bits\n\tarray       :   32 bits\n\n"
    "\tpadding     : type == 29\n\ttime_extend : type == 30\n\ttime_stamp : type == 31\n"
    "\tdata max type_len  == 28\n"
)

FUNCTIONS = frozenset(b"tTwW")
"""Kinds of symbols that an event can point at."""


def symbols(kallsyms: Path) -> bytes:
    """Return the functions of a list of symbols; none where their addresses are hidden."""
    if hides_addresses(kallsyms):
        return b""
    with kallsyms.open("rb") as file:
        return b"".join(line for line in file if line.split(maxsplit=2)[1][0] in FUNCTIONS)


def hides_addresses(kallsyms: Path) -> bool:
    """Return whether the kernel says 0 for all addresses: kptr_restrict, or no CAP_SYSLOG."""
    with kallsyms.open("rb") as file:
        functions = (line for line in file if line.split(maxsplit=2)[1][0] in FUNCTIONS)
        return any(int(line.split()[0], 16) == 0 for line in islice(functions, 1))


def task_names(proc: Path) -> dict[int, bytes]:
    """Return what the tasks that live are called, by their number.

    In a container, tasks have other numbers than in the kernel's events: nothing is known there.
    """
    found: dict[int, bytes] = {}
    with contextlib.suppress(OSError):
        if str((proc / "self/ns/pid").readlink()) != MACHINE_NAMESPACES["pid"]:
            return found
    for process in _numbers(proc):
        for task in _numbers(proc / process / "task"):
            with contextlib.suppress(OSError):  # it has ended
                comm = (proc / process / "task" / task / "comm").read_bytes()
                found[int(task)] = comm.rstrip(b"\n")
    return found


def _numbers(folder: Path) -> list[str]:
    """Return the names in a folder that are numbers; none where its process has ended."""
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]  # noqa: PTH208 (of names)
    except OSError:
        return []


def head_of(scratch: Path) -> Path:
    """Return the name of a file with the head, by which trace-cmd restore can make a trace."""
    return scratch.with_name(f"{scratch.name}.head")


def head(order: dict[str, Any], names: dict[int, bytes], proc: Path) -> bytes:
    """Return what a trace begins with. Raises OSError."""
    return header(order["formats"], symbols(proc / "kallsyms"), names)


def header(formats: dict[str, str], kallsyms: bytes, names: dict[int, bytes]) -> bytes:
    """Return what comes before the number of CPUs; ``formats`` describes each event."""
    parts = [MAGIC, struct.pack("=BBI", sys.byteorder == "big", LONG, PAGE)]
    for name, text in (("header_page", HEADER_PAGE), ("header_event", HEADER_EVENT)):
        parts += [name.encode() + b"\0", _sized("Q", text.encode())]
    parts.append(struct.pack("=I", 0))  # events of tracers
    systems = [(name, list(x)) for name, x in groupby(sorted(formats), lambda x: x.split(":")[0])]
    parts.append(struct.pack("=I", len(systems)))
    for system, events in systems:
        parts += [system.encode() + b"\0", struct.pack("=I", len(events))]
        parts += [_sized("Q", formats[event].encode()) for event in events]
    # A task may call itself anything, and the first odd line would end the list for its readers.
    named = ((task, name.replace(b"\n", b"?")) for task, name in sorted(names.items()))
    lines = (line for line in named if line[1].strip())
    listed = b"".join(b"%d %s\n" % line for line in lines)
    parts += [_sized("I", kallsyms), _sized("I", b""), _sized("Q", listed)]
    return b"".join(parts)


def _sized(size: str, data: bytes) -> bytes:
    return struct.pack(f"={size}", len(data)) + data


def assemble(file: BinaryIO, begin: bytes, pages: dict[int, Path], clock: str) -> None:
    """Write a whole file: its header, and the pages of each CPU. Raises OSError."""
    chosen = f"[{clock}]\0".encode()
    cpus = max(pages) + 1
    parts = [begin, struct.pack("=I", cpus), OPTIONS]
    for option, text in ((TRACECLOCK, chosen), (UNAME, _machine())):
        parts += [struct.pack("=H", option), _sized("I", text)]
    parts += [struct.pack("=H", 0), RECORDS]
    at = _aligned(sum(map(len, parts)) + cpus * 16)
    # The last page of a file whose writer was killed may be cut off.
    sizes = {cpu: path.stat().st_size // PAGE * PAGE for cpu, path in pages.items()}
    for cpu in range(cpus):
        size = sizes.get(cpu, 0)
        parts.append(struct.pack("=QQ", at, size))
        at += size
    start = b"".join(parts)
    file.write(start.ljust(_aligned(len(start)), b"\0"))
    file.flush()
    for cpu in sorted(pages):
        with pages[cpu].open("rb") as source:
            left = sizes[cpu]
            while left:
                left -= os.sendfile(file.fileno(), source.fileno(), None, min(left, 1 << 24))


def _machine() -> bytes:
    """Return what trace-cmd says of the machine; readers know the architecture from it."""
    here = os.uname()
    return " ".join((here.sysname, here.nodename, here.release, here.machine)).encode() + b"\0"


def _aligned(size: int) -> int:
    return -(-size // PAGE) * PAGE
