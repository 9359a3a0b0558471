# SPDX-License-Identifier: GPL-2.0-only
"""Calling bpf(2): maps, programs, and what they are attached to. For the keeper: no imports."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from typing import Any

SYSCALL = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
"""The number of bpf(2)."""

CREATE, LOAD, INFO, ATTACH = 0, 5, 15, 17
"""Commands of bpf(2): of maps, programs, and tracepoints."""

ARRAY, RINGBUF = 2, 27
"""Kinds of maps."""

RAW_TRACEPOINT, TRACING = 17, 26
"""Kinds of programs: at a tracepoint, and where the kernel's types say what they get."""

AT_TRACEPOINT, AT_RETURN = 23, 25
"""Where the second kind is attached."""

MMAPABLE = 1 << 10

ATTRIBUTES = 128
"""Bytes of an argument of bpf(2); what a kernel does not know is 0."""

ATTACH_TYPE, LOG, KERNEL_TYPE = 68, 24, 108
"""Where some attributes of a program are."""

PROGRAM_INFO, MISSES = 216, 208
"""Bytes of struct bpf_prog_info up to recursion_misses, and where that begins."""

LICENSE = ctypes.create_string_buffer(b"GPL")
LIBC = ctypes.CDLL(None, use_errno=True)


def call(command: int, attributes: bytes | bytearray) -> int:
    """Call bpf(2). Raises OSError."""
    number = SYSCALL.get(os.uname().machine)
    if struct.calcsize("P") != 8:
        raise OSError(errno.ENOSYS, "this Python has 32 bits, and the numbers of 64 are needed")
    if number is None:
        raise OSError(errno.ENOSYS, f"lightsleep does not know bpf(2) of {os.uname().machine}")
    room = ctypes.create_string_buffer(bytes(attributes), ATTRIBUTES)
    done: int = LIBC.syscall(number, command, room, ATTRIBUTES)
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def create(kind: int, size: int, entries: int, flags: int = 0) -> int:
    """Return a new map whose values have ``size`` bytes. Raises OSError."""
    key = 0 if kind == RINGBUF else 4
    return call(CREATE, struct.pack("=5I", kind, key, size, entries, flags))


def load(name: str, program: dict[str, Any], maps: dict[str, int], at: int = AT_TRACEPOINT) -> int:
    """Return a program that the kernel has accepted; ``name`` is for its errors. Raises OSError."""
    code = bytearray.fromhex(program["code"])
    for place, which in program["maps"].items():
        struct.pack_into("=i", code, int(place) * 8 + 4, maps[which])
    text, said = ctypes.create_string_buffer(bytes(code)), ctypes.create_string_buffer(1 << 16)
    typed = program.get("type")
    attributes = bytearray(ATTRIBUTES)
    kind = RAW_TRACEPOINT if typed is None else TRACING
    where = ctypes.addressof(text), ctypes.addressof(LICENSE)
    struct.pack_into("=IIQQ", attributes, 0, kind, len(code) // 8, *where)
    if typed is not None:
        struct.pack_into("=I", attributes, ATTACH_TYPE, at)
        struct.pack_into("=I", attributes, KERNEL_TYPE, typed)
    try:
        return call(LOAD, attributes)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EACCES):
            raise
        with contextlib.suppress(OSError):  # the same, with the kernel's reason
            struct.pack_into("=IIQ", attributes, LOG, 1, len(said), ctypes.addressof(said))
            os.close(call(LOAD, attributes))
        lines = said.value.decode(errors="replace").strip().splitlines()
        reason = "; ".join([error.strerror or str(error), *lines[-3:]])
        raise OSError(error.errno, f"{name}: {reason}") from error


def attach(tracepoint: str | None, program: int) -> int:
    """Have a program run at a tracepoint; return what ends that when it is closed.

    Without a name, it runs where its type says. Raises OSError.
    """
    name = ctypes.create_string_buffer((tracepoint or "").encode())
    where = ctypes.addressof(name) if tracepoint else 0
    try:
        return call(ATTACH, struct.pack("=QI", where, program))
    except OSError as error:
        if error.errno != errno.ENOENT or tracepoint is None:
            raise
        raise OSError(errno.ENOENT, f"it has no tracepoint {tracepoint}") from error


def missed(program: int) -> int:
    """Return how often a program did not run because it interrupted itself."""
    info = ctypes.create_string_buffer(PROGRAM_INFO)
    call(INFO, struct.pack("=IIQ", program, PROGRAM_INFO, ctypes.addressof(info)))
    (found,) = struct.unpack_from("=Q", info, MISSES)
    return int(found)
