# SPDX-License-Identifier: GPL-2.0-only
"""A machine that runs BPF programs, instruction by instruction: as far as ours need it.

Something may happen before each instruction, as an interrupt does: another program may run there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightsleep.record.bpf import histogram, pages, trace
from lightsleep.record.bpf import program as bpf

ALL = (1 << 64) - 1
STACK, ATOMIC_MODE = 512, 0xE0
ADDRESS = 0xFFFF888000000000
"""Of each structure of the kernel, for those who write it down."""


@dataclass(frozen=True)
class Pointer:
    """An address: bytes, and how far into them."""

    memory: memoryview
    offset: int = 0


class Struct(dict[int, "Value"]):
    """The address of a structure of the kernel: what is at which offset. The rest is 0."""


Value = int | Pointer | Struct


class Stopped(AssertionError):
    """A program did what the kernel's verifier would not have let it do."""


@dataclass
class Machine:
    """Some CPUs, of which ``cpu`` runs programs.

    ``clock`` returns the time, ``wakes`` counts how often the keeper was woken. ``current`` is the
    number of the task that runs, ``task`` its address.
    """

    maps: Mapping[str, memoryview]
    clock: Callable[[], int]
    cpu: int = 0
    current: int = 0
    task: int = 0
    wakes: int = 0

    def run(
        self,
        code: Mapping[str, Any],
        context: Struct,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a program to its end; call ``before`` before each of its instructions."""
        text = bytes.fromhex(code["code"])
        steps = [struct.unpack_from("=BBhi", text, at) for at in range(0, len(text), 8)]
        stack = memoryview(bytearray(STACK))
        spilled: dict[int, Pointer | Struct] = {}
        registers: list[Value] = [0] * 11
        registers[1] = context
        registers[10] = Pointer(stack, len(stack))
        at = 0
        while True:
            operation, both, offset, number = steps[at]
            dst, src = both & 15, both >> 4
            kind, at = operation & 7, at + 1
            before()
            if operation == bpf.JMP | bpf.EXIT:
                return
            if operation == bpf.JMP | bpf.CALL:
                registers[0] = self._call(number, registers)
            elif kind in (bpf.JMP, bpf.JMP32):
                right = registers[src] if operation & bpf.REGISTER else number & ALL
                if _jumps(operation, registers[dst], right):
                    at += offset
            elif kind in (bpf.ALU, bpf.ALU64):
                right = registers[src] if operation & bpf.REGISTER else number & ALL
                value = _computed(operation & 0xF0, registers[dst], right)
                if kind == bpf.ALU:
                    assert isinstance(value, int)
                    value &= 0xFFFFFFFF
                registers[dst] = value
            elif operation == bpf.LD | bpf.IMM | bpf.DOUBLE:
                name = code["maps"][str(at - 1)]
                registers[dst] = Pointer(self.maps.get(name, stack))
                at += 1
            elif kind == bpf.LDX:
                registers[dst] = _loaded(operation, registers[src], offset, spilled)
            else:
                right = registers[src] if kind == bpf.STX else number & ALL
                if operation & ATOMIC_MODE == bpf.ATOMIC:
                    _exchange(registers, dst, src, offset, number)
                else:
                    _store(operation, registers[dst], offset, right, spilled)

    def _call(self, helper: int, registers: list[Value]) -> Value:
        if helper == trace.KTIME_GET_NS:
            return self.clock()
        if helper == trace.GET_SMP_PROCESSOR_ID:
            return self.cpu
        if helper == trace.GET_CURRENT_PID_TGID:
            return self.current
        if helper == histogram.GET_CURRENT_TASK:
            return self.task
        if helper == bpf.LOOKUP:
            map_, key = registers[1], registers[2]
            assert isinstance(map_, Pointer)
            assert isinstance(key, Pointer)
            (index,) = struct.unpack_from("=I", key.memory, key.offset)
            return Pointer(map_.memory, index * pages.PAGE)
        if helper == trace.RINGBUF_OUTPUT:
            self.wakes += 1
            return 0
        assert helper in (trace.PROBE_READ_KERNEL, trace.PROBE_READ_KERNEL_STR)
        target, size, source = registers[1:4]
        assert isinstance(target, Pointer)
        assert isinstance(source, Pointer)
        assert isinstance(size, int)
        data = source.memory[source.offset : source.offset + size]
        target.memory[target.offset : target.offset + len(data)] = data
        return 0


def _loaded(
    operation: int, source: Value, offset: int, spilled: Mapping[int, Pointer | Struct]
) -> Value:
    if isinstance(source, Struct):
        found = source.get(offset, 0)
        return found & 0xFFFFFFFF if isinstance(found, int) and not _is_double(operation) else found
    memory, at, size = _place(operation, source, offset)
    if len(memory) == STACK and at in spilled:
        return spilled[at]
    return int.from_bytes(memory[at : at + size], "little")


def _store(
    operation: int, target: Value, offset: int, value: Value, spilled: dict[int, Pointer | Struct]
) -> None:
    memory, at, size = _place(operation, target, offset)
    if isinstance(value, Struct) and len(memory) != STACK:
        value = ADDRESS
    if isinstance(value, int):
        memory[at : at + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif len(memory) != STACK:
        raise Stopped("an address where everybody can read it")
    else:
        spilled[at] = value


def _exchange(registers: list[Value], dst: int, src: int, offset: int, what: int) -> None:
    memory, at, size = _place(bpf.DOUBLE, registers[dst], offset)
    old = int.from_bytes(memory[at : at + size], "little")
    value = registers[src]
    assert isinstance(value, int)
    if what == bpf.COMPARE_AND_SWAP:
        new = value if registers[0] == old else old
        registers[0] = old
    else:
        assert what == bpf.ADD | bpf.FETCH
        new = old + value & ALL
        registers[src] = old
    memory[at : at + size] = new.to_bytes(size, "little")


def _is_double(operation: int) -> bool:
    return operation & 0x18 == bpf.DOUBLE


def _place(operation: int, pointer: Value, offset: int) -> tuple[memoryview, int, int]:
    """Return the bytes that an instruction is about: of what, from where on, how many."""
    size = {bpf.BYTE: 1, bpf.WORD: 4, bpf.DOUBLE: 8}[operation & 0x18]
    if not isinstance(pointer, Pointer):
        raise Stopped(f"no pointer: {pointer}")
    at = pointer.offset + offset
    if not 0 <= at <= len(pointer.memory) - size:
        raise Stopped(f"{size} bytes at {at} of {len(pointer.memory)}")
    return pointer.memory, at, size


def _jumps(operation: int, left: Value, right: Value) -> bool:
    test = operation & 0xF0
    if test == bpf.JA:
        return True
    if not isinstance(left, int):  # whether a map had an entry
        assert right == 0
        return test == bpf.JNE
    assert isinstance(right, int)
    left, right = left & ALL, right & ALL
    if operation & 7 == bpf.JMP32:
        left, right = left & 0xFFFFFFFF, right & 0xFFFFFFFF
    return {
        bpf.JEQ: left == right,
        bpf.JNE: left != right,
        bpf.JGT: left > right,
        bpf.JLT: left < right,
    }[test]


def _computed(operation: int, left: Value, right: Value) -> Value:
    if operation == bpf.MOV:
        return right & ALL if isinstance(right, int) else right
    if operation == bpf.ADD and isinstance(right, Pointer):
        left, right = right, left
    if isinstance(left, Pointer):
        assert operation == bpf.ADD
        assert isinstance(right, int)
        signed = right - (1 << 64) if right >> 63 else right
        return Pointer(left.memory, left.offset + signed)
    assert isinstance(left, int)
    assert isinstance(right, int)
    found = {
        bpf.ADD: lambda: left + right,
        bpf.SUB: lambda: left - right,
        bpf.AND: lambda: left & right,
        bpf.OR: lambda: left | right,
        bpf.XOR: lambda: left ^ right,
        bpf.LSH: lambda: left << right,
        bpf.RSH: lambda: left >> right,
    }[operation]()
    return int(found) & ALL
