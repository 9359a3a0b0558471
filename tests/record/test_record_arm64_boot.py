# SPDX-License-Identifier: GPL-2.0-only
"""Recording by BPF programs in a guest of arm64, where they are the first choice, too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from booted import boot
from recordings import rows_of
from test_record_boot import (
    COUNTS,
    ENOUGH_S,
    HISTOGRAM,
    LIGHTSLEEP,
    READER,
    WAKES,
    counted,
    fetched,
)

from lightsleep.lab.boot.machine import Machine
from lightsleep.record import sidecar

pytestmark = pytest.mark.boot


def test_bpf_programs_record_and_count_on_arm64(tmp_path: Path) -> None:
    with boot(Machine(arch="aarch64", accel="tcg"), "bpf-arm64", ENOUGH_S) as guest:
        load = ["sh", "-c", READER]
        guest.run([*LIGHTSLEEP, "-o", "/tmp/read.dat", "--", *load], timeout_s=ENOUGH_S)
        path = fetched(guest, "/tmp/read.dat", tmp_path)
        guest.run([*HISTOGRAM, "-o", "/tmp/read.json", "--", *load], timeout_s=ENOUGH_S)
        assert counted(guest, "/tmp/read.json", tmp_path).metadata.events > 0
        assert guest.run(COUNTS).stdout == "0\n"
    rows, metadata = rows_of(path)
    document = json.loads(sidecar.beside(path).read_text())
    assert document["settings"]["recorder"] == "bpf"
    assert document["recorded"]["sleep_length"] == "recorded"
    assert metadata.lost == {}
    read = [x for x in rows if x["wakee_comm"] == "cat" and x["waker_comm"] == "python3"]
    assert len(read) >= 0.9 * WAKES
    assert {x["cpu"] for x in rows} == {0, 1}
