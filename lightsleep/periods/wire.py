# SPDX-License-Identifier: GPL-2.0-only
"""The wire format of protocol buffers: what fields a message has, without knowing their meaning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
FIXED = {FIXED64: 8, FIXED32: 4}

LONGEST = 10
"""Bytes of a number at most."""

MOST_FIELDS = 1 << 29


class Damaged(ValueError):
    """Bytes are no message: from where on, and why not."""

    def __init__(self, at: int, reason: str) -> None:
        """Say that the bytes from ``at`` on are damaged."""
        super().__init__(reason)
        self.at = at


class Field(NamedTuple):
    """A field of a message. Its bytes are from ``begin`` to ``end``; ``value`` is its number."""

    number: int
    value: int
    begin: int
    end: int


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at ``at``, and where it has ended."""
    value = 0
    for position in range(at, min(at + LONGEST, len(data))):
        byte = data[position]
        value |= (byte & 0x7F) << 7 * (position - at)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + 1
    raise Damaged(at, "a number has no end")


def tag(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the number and the kind of the field that begins at ``at``, and where they end."""
    both, end = varint(data, at)
    number, kind = both >> 3, both & 7
    if not 0 < number < MOST_FIELDS or kind not in (VARINT, DELIMITED, *FIXED):
        raise Damaged(at, f"no field begins with 0x{both:x}")
    return number, kind, end


def fields(data: bytes) -> Iterator[Field]:
    """Yield the fields of a message. Raises Damaged where it is none."""
    at = 0
    while at < len(data):
        first = at
        number, kind, at = tag(data, at)
        if kind == VARINT:
            value, end = varint(data, at)
        elif kind == DELIMITED:
            value, at = varint(data, at)
            end = at + value
        else:
            value, end = int.from_bytes(data[at : at + FIXED[kind]], "little"), at + FIXED[kind]
        if end > len(data):
            raise Damaged(first, f"field {number} of {end - at} bytes has {len(data) - at}")
        yield Field(number, value, at, end)
        at = end
