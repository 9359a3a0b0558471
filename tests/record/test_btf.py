# SPDX-License-Identifier: GPL-2.0-only
"""What the kernel says of its types, and what is damaged or missing in that."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lightsleep.errors import LightsleepError
from lightsleep.record.bpf import btf, trace


def types_of(*members: tuple[str, list[tuple[str, int, int]]], kflag: bool = False) -> bytes:
    """Return BTF with structures; of a member, its name, type, and bits before it."""
    strings, data = b"\0", b""

    def place(name: str) -> int:
        nonlocal strings
        if not name:
            return 0
        strings += name.encode() + b"\0"
        return len(strings) - len(name) - 1

    for name, each in members:
        info = btf.STRUCT << 24 | len(each) | kflag << 31
        data += struct.pack("=III", place(name), info, 64)
        for member, kind, bits in each:
            data += struct.pack("=III", place(member), kind, bits)
    head = struct.pack("=HBBIIIII", btf.MAGIC, 1, 0, 24, 0, len(data), len(data), len(strings))
    return head + data + strings


def test_members_of_structures_without_a_name_count() -> None:
    inner: tuple[str, list[tuple[str, int, int]]] = ("", [("x", 9, 0), ("pid", 9, 32)])
    outer = ("task", [("prio", 9, 0), ("", 1, 64), ("comm", 9, 128)])
    types = btf.Types(types_of(inner, outer), ["task"])
    assert [types.offset("task", x) for x in ("prio", "x", "pid", "comm")] == [0, 8, 12, 16]
    with pytest.raises(LightsleepError, match="struct task has no member state"):
        types.offset("task", "state")
    with pytest.raises(LightsleepError, match="struct other has no member pid"):
        types.offset("other", "pid")
    assert types.number(btf.FUNC, "task") is None


def test_a_member_may_be_described_with_its_bits() -> None:
    """With kind_flag, the upper byte of the offset is the size of a bit-field."""
    types = btf.Types(types_of(("task", [("pid", 9, 3 << 24 | 96)]), kflag=True), ["task"])
    assert types.offset("task", "pid") == 12


def test_whether_a_tracepoint_hands_a_pointer() -> None:
    strings = b"\0s64\0btf_trace_x\0btf_trace_y\0"
    types = (
        struct.pack("=IIII", 1, btf.INT << 24, 8, 64),  # 1: s64
        struct.pack("=III", 0, btf.PTR << 24, 1),  # 2: s64 *
        struct.pack("=III", 1, btf.CONST << 24, 1),  # 3: const s64
        struct.pack("=III", 0, btf.FUNC_PROTO << 24 | 3, 0)  # 4: void (*, s64 *, const s64)
        + struct.pack("=6I", 0, 2, 0, 2, 0, 3),
        struct.pack("=III", 0, btf.PTR << 24, 4),  # 5
        struct.pack("=III", 5, btf.TYPEDEF << 24, 5),  # 6: btf_trace_x
        struct.pack("=III", 17, btf.TYPEDEF << 24, 2),  # 7: btf_trace_y, no function
    )
    data = b"".join(types)
    head = struct.pack("=HBBIIIII", btf.MAGIC, 1, 0, 24, 0, len(data), len(data), len(strings))
    found = btf.Types(head + data + strings, ["btf_trace_x", "btf_trace_y"])
    assert [found.hands_pointer("btf_trace_x", arg) for arg in (0, 1)] == [True, False]
    for name in ("btf_trace_y", "btf_trace_z"):
        with pytest.raises(LightsleepError, match=f"does not describe {name}"):
            found.hands_pointer(name, 0)


@pytest.mark.parametrize("cut", [0, 10, 24, 30, 57])
def test_cut_types_are_refused(cut: int) -> None:
    data = types_of(("task", [("pid", 9, 0)]))
    with pytest.raises(LightsleepError, match="BTF is damaged"):
        btf.Types(data[:cut], ["task"])


def test_damaged_types_are_refused() -> None:
    data = types_of(("task", [("pid", 9, 0)]))
    with pytest.raises(LightsleepError, match="another byte order"):
        btf.Types(data[:2][::-1] + data[2:], ["task"])
    more = bytearray(data)
    more[28] += 1  # a member that is not there
    with pytest.raises(LightsleepError, match="BTF is damaged"):
        btf.Types(bytes(more), ["task"])


def test_without_types_there_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(LightsleepError, match="they need a kernel with CONFIG_DEBUG_INFO_BTF"):
        trace.kernel_types(tmp_path)
