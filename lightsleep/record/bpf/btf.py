# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel says of its own types: BTF (Documentation/bpf/btf), as far as programs need it.

A program that reads a member of a structure needs the member's offset, and one that runs at a
typed tracepoint, or at the end of a function, needs the number of its type.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

from lightsleep.errors import LightsleepError

KERNEL = Path("sys/kernel/btf/vmlinux")

MAGIC = 0xEB9F
INT, ARRAY, STRUCT, UNION, ENUM, TYPEDEF, FUNC = 1, 3, 4, 5, 6, 8, 12
FUNC_PROTO, VAR, DATASEC, DECL_TAG, ENUM64 = 13, 14, 15, 17, 19
PTR, VOLATILE, CONST, RESTRICT = 2, 9, 10, 11

FIXED = {INT: 4, ARRAY: 12, VAR: 4, DECL_TAG: 4}
"""Bytes behind a type of this kind."""

EACH = {STRUCT: 12, UNION: 12, ENUM: 8, FUNC_PROTO: 8, DATASEC: 12, ENUM64: 12}
"""Bytes behind a type for each of its members."""

HEADER, TYPE, MEMBER = struct.Struct("=HBBIIIII"), struct.Struct("=III"), struct.Struct("=III")
PARAMETER = struct.Struct("=II")


class Types:
    """The structures, type names and functions that were asked for."""

    def __init__(self, data: bytes, names: Iterable[str]) -> None:
        """Look for ``names`` in the BTF of a kernel. Raises LightsleepError where it is none."""
        self._data = data
        try:
            magic, _, _, header, types, length, strings, size = HEADER.unpack_from(data)
        except struct.error:
            magic = 0
        if magic != MAGIC or header + max(types + length, strings + size) > len(data):
            raise LightsleepError("the kernel's BTF is damaged, or of another byte order")
        self._strings = data[header + strings : header + strings + size]
        wanted = {place for name in names if (place := self._place(name))}
        self._at: dict[tuple[int, str], int] = {}
        self._numbers: dict[int, int] = {}
        self._anonymous: dict[int, int] = {}
        self._begins = array("I", [0])  # of each type; type 0 is void
        try:
            self._walk(header + types, header + types + length, wanted)
        except (struct.error, ValueError):
            raise LightsleepError("the kernel's BTF is damaged") from None

    def _place(self, name: str) -> int:
        """Return where a name is among the strings; 0 where it is not."""
        return self._strings.find(b"\0" + name.encode() + b"\0") + 1

    def _walk(self, at: int, end: int, wanted: set[int]) -> None:
        """Find the types with these names, and all structures without a name."""
        number = 0
        while at < end:
            number += 1
            self._begins.append(at)
            name, info, _ = TYPE.unpack_from(self._data, at)
            kind = info >> 24 & 0x1F
            if name in wanted:
                self._numbers[at] = number
                self._at.setdefault((kind, self._string(name)), at)
            elif not name and kind in (STRUCT, UNION):
                self._anonymous[number] = at
            at += TYPE.size + FIXED.get(kind, 0) + EACH.get(kind, 0) * (info & 0xFFFF)
        if at != end:
            raise ValueError("the last type is cut off")

    def _string(self, place: int) -> str:
        return self._strings[place : self._strings.index(b"\0", place)].decode()

    def number(self, kind: int, name: str) -> int | None:
        """Return the number of a type (TYPEDEF) or function (FUNC); None where there is none."""
        at = self._at.get((kind, name))
        return None if at is None else self._numbers[at]

    def hands_pointer(self, tracepoint: str, arg: int) -> bool:
        """Return whether an argument of a tracepoint's type is a pointer.

        Raises LightsleepError where the types do not tell.
        """
        try:
            pointer = self._led_to(self.number(TYPEDEF, tracepoint) or 0)
            kind, target = self._type(pointer)
            function = self._begins[target]
            # The first parameter is the tracepoint's own.
            at = function + TYPE.size + (arg + 1) * PARAMETER.size
            if kind != PTR or self._type(target)[0] != FUNC_PROTO:
                raise ValueError("no function")
            return self._type(self._led_to(PARAMETER.unpack_from(self._data, at)[1]))[0] == PTR
        except (struct.error, ValueError, IndexError):
            raise LightsleepError(f"the kernel's BTF does not describe {tracepoint}") from None

    def _led_to(self, number: int) -> int:
        """Return the type that another name for it leads to."""
        kind, target = self._type(number)
        while kind in (TYPEDEF, VOLATILE, CONST, RESTRICT):
            number = target
            kind, target = self._type(number)
        return number

    def _type(self, number: int) -> tuple[int, int]:
        """Return the kind of a type and the number behind it; (0, 0) of void."""
        if not number:
            return 0, 0
        _, info, behind = TYPE.unpack_from(self._data, self._begins[number])
        return info >> 24 & 0x1F, behind

    def offset(self, structure: str, member: str) -> int:
        """Return the bytes before a member. Raises LightsleepError where there is no such one."""
        at = self._at.get((STRUCT, structure))
        for name, offset in self._members(at) if at is not None else ():
            if name == member:
                return offset
        raise LightsleepError(f"the kernel's struct {structure} has no member {member}")

    def _members(self, at: int) -> Iterator[tuple[str, int]]:
        """Yield the members of a structure, and those of the ones in it that have no name."""
        _, info, _ = TYPE.unpack_from(self._data, at)
        for i in range(info & 0xFFFF):
            name, kind, bits = MEMBER.unpack_from(self._data, at + TYPE.size + i * MEMBER.size)
            offset = (bits & 0xFFFFFF if info >> 31 else bits) // 8
            if name:
                yield self._string(name), offset
            elif (inner := self._anonymous.get(kind)) is not None:
                for each, more in self._members(inner):
                    yield each, offset + more


def of_kernel(root: Path, names: Iterable[str]) -> Types:
    """Return types of the kernel that runs. Raises LightsleepError where it does not tell them."""
    try:
        return Types((root / KERNEL).read_bytes(), names)
    except OSError as error:
        raise LightsleepError(
            f"cannot read /{KERNEL}: {error.strerror}; they need a kernel with "
            "CONFIG_DEBUG_INFO_BTF"
        ) from error
