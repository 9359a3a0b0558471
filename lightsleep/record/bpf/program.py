# SPDX-License-Identifier: GPL-2.0-only
"""Writing a BPF program, instruction by instruction (Documentation/bpf/standardization).

Registers have numbers. 0 is what a helper returns, 1 to 5 its arguments, which it destroys; 6 to 9
stay; 10 is the end of the stack. Labels are words, and a jump goes forward to one.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

LD, LDX, ST, STX, ALU, JMP, JMP32, ALU64 = range(8)
WORD, BYTE, DOUBLE = 0x00, 0x10, 0x18
IMM, MEM, ATOMIC = 0x00, 0x60, 0xC0
REGISTER = 0x08
ADD, SUB, OR, AND = 0x00, 0x10, 0x40, 0x50
LSH, RSH, XOR, MOV = 0x60, 0x70, 0xA0, 0xB0
FETCH, COMPARE_AND_SWAP = 0x01, 0xF1
JA, JEQ, JGT, JNE, CALL, EXIT, JLT = 0x00, 0x10, 0x20, 0x50, 0x80, 0x90, 0xA0
MAP, MAP_VALUE = 1, 2
LOOKUP = 1


class Program:
    """Instructions, the labels that they jump to, and the maps that they use."""

    def __init__(self) -> None:
        """Begin with none."""
        self._code: list[tuple[int, int, int, int, int]] = []
        self._labels: dict[str, int] = {}
        self._jumps: dict[int, str] = {}
        self._maps: dict[int, str] = {}

    def to_json(self) -> dict[str, Any]:
        """Return the instructions in hexadecimal, and which of them name which map."""
        code = list(self._code)
        for at, label in self._jumps.items():
            assert self._labels[label] > at, label
            operation, dst, src, _, number = code[at]
            code[at] = (operation, dst, src, self._labels[label] - at - 1, number)
        return {
            "code": b"".join(map(_encoded, code)).hex(),
            "maps": {str(at): name for at, name in self._maps.items()},
        }

    def _add(self, operation: int, dst: int = 0, src: int = 0, off: int = 0, imm: int = 0) -> None:
        self._code.append((operation, dst, src, off, imm))

    def label(self, name: str) -> None:
        """Name the next instruction."""
        assert name not in self._labels
        self._labels[name] = len(self._code)

    def _jump(self, operation: int, label: str, dst: int = 0, src: int = 0, imm: int = 0) -> None:
        self._jumps[len(self._code)] = label
        self._add(operation, dst, src, 0, imm)

    def jump(self, label: str) -> None:  # noqa: D102
        self._jump(JMP | JA, label)

    def if_equal(self, register: int, number: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JEQ, label, register, imm=number)

    def if_equal32(self, register: int, number: int, label: str) -> None:
        """Compare the lower half of a register."""
        self._jump(JMP32 | JEQ, label, register, imm=number)

    def if_not_equal(self, register: int, number: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JNE, label, register, imm=number)

    def if_above(self, register: int, number: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JGT, label, register, imm=number)

    def if_below(self, register: int, number: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JLT, label, register, imm=number)

    def if_same(self, left: int, right: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JEQ | REGISTER, label, left, right)

    def if_other(self, left: int, right: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JNE | REGISTER, label, left, right)

    def if_more(self, left: int, right: int, label: str) -> None:  # noqa: D102
        self._jump(JMP | JGT | REGISTER, label, left, right)

    def copy(self, dst: int, src: int) -> None:  # noqa: D102
        self._add(ALU64 | MOV | REGISTER, dst, src)

    def number(self, dst: int, number: int) -> None:  # noqa: D102
        self._add(ALU64 | MOV, dst, imm=number)

    def add(self, dst: int, src: int) -> None:  # noqa: D102
        self._add(ALU64 | ADD | REGISTER, dst, src)

    def add_number(self, dst: int, number: int) -> None:  # noqa: D102
        self._add(ALU64 | ADD, dst, imm=number)

    def subtract(self, dst: int, src: int) -> None:  # noqa: D102
        self._add(ALU64 | SUB | REGISTER, dst, src)

    def combine(self, dst: int, src: int) -> None:
        """Set the bits that are set in either register."""
        self._add(ALU64 | OR | REGISTER, dst, src)

    def differ(self, dst: int, src: int) -> None:
        """Leave the bits in which two registers differ."""
        self._add(ALU64 | XOR | REGISTER, dst, src)

    def mask(self, dst: int, number: int) -> None:  # noqa: D102
        self._add(ALU64 | AND, dst, imm=number)

    def shift_left(self, dst: int, bits: int) -> None:  # noqa: D102
        self._add(ALU64 | LSH, dst, imm=bits)

    def shift_right(self, dst: int, bits: int) -> None:  # noqa: D102
        self._add(ALU64 | RSH, dst, imm=bits)

    def load(self, dst: int, src: int, offset: int) -> None:
        """Read 64 bits."""
        self._add(LDX | MEM | DOUBLE, dst, src, offset)

    def load32(self, dst: int, src: int, offset: int) -> None:
        """Read 32 bits; the upper half becomes 0."""
        self._add(LDX | MEM | WORD, dst, src, offset)

    def load8(self, dst: int, src: int, offset: int) -> None:
        """Read a byte; the other ones become 0."""
        self._add(LDX | MEM | BYTE, dst, src, offset)

    def increase(self, dst: int, offset: int, src: int) -> None:
        """Add what a register holds to 64 bits, whoever else does so; it takes what they were.

        This is a full barrier, as all atomic operations are that return something.
        """
        self._add(STX | ATOMIC | DOUBLE, dst, src, offset, ADD | FETCH)

    def exchange(self, dst: int, offset: int, src: int) -> None:
        """Write 64 bits if they are what register 0 holds, which takes what they were."""
        self._add(STX | ATOMIC | DOUBLE, dst, src, offset, COMPARE_AND_SWAP)

    def store(self, dst: int, offset: int, src: int) -> None:
        """Write 64 bits."""
        self._add(STX | MEM | DOUBLE, dst, src, offset)

    def store32(self, dst: int, offset: int, src: int) -> None:
        """Write the lower half of a register."""
        self._add(STX | MEM | WORD, dst, src, offset)

    def store_number32(self, dst: int, offset: int, number: int) -> None:
        """Write a number as 32 bits."""
        self._add(ST | MEM | WORD, dst, 0, offset, number)

    def store_number(self, dst: int, offset: int, number: int) -> None:
        """Write a number as 64 bits."""
        self._add(ST | MEM | DOUBLE, dst, 0, offset, number)

    def value(self, dst: int, name: str) -> None:
        """Point to the value of a map that has one entry."""
        self._map(dst, name, MAP_VALUE)

    def lookup(self, name: str, offset: int) -> None:
        """Point register 0 to the value of a map whose key is on the stack; 0 where it has none."""
        self.map(1, name)
        self.copy(2, 10)
        self.add_number(2, offset)
        self.call(LOOKUP)

    def map(self, dst: int, name: str) -> None:
        """Point to a map, for a helper."""
        self._map(dst, name, MAP)

    def _map(self, dst: int, name: str, kind: int) -> None:
        self._maps[len(self._code)] = name
        self._add(LD | IMM | DOUBLE, dst, kind)
        self._add(0)

    def call(self, helper: int) -> None:  # noqa: D102
        self._add(JMP | CALL, imm=helper)

    def end(self) -> None:
        """Return 0."""
        self.number(0, 0)
        self._add(JMP | EXIT)


def _encoded(instruction: tuple[int, int, int, int, int]) -> bytes:
    operation, dst, src, offset, number = instruction
    registers = dst | src << 4 if sys.byteorder == "little" else dst << 4 | src
    return struct.pack("=BBhi", operation, registers, offset, number)
