# SPDX-License-Identifier: GPL-2.0-only
"""What the experiments on disks and networks read in a guest, from texts of a real one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.experiments import poll_source_file, poll_source_net, poll_source_off
from lightsleep.lab.experiments.poll_source_blk import DISKS
from lightsleep.lab.loads import disks

INTERRUPTS = """\
           CPU0       CPU1
 27:        245         10  PCI-MSIX-0000:00:01.0   1-edge      virtio0-req.0
 30:       1001          0  PCI-MSIX-0000:00:03.0   1-edge      virtio2-req.0
 31:          0        100  PCI-MSIX-0000:00:03.0   2-edge      virtio2-req.1
 33:       7000          0  PCI-MSIX-0000:00:04.0   1-edge      virtio21-req.0
 40:         20          0  PCI-MSIX-0000:00:05.0   1-edge      virtio3-input.0
 41:          3          0  PCI-MSIX-0000:00:05.0   2-edge      virtio3-output.0
 42:          9          0  PCI-MSIX-0000:00:05.0   0-edge      virtio3-config
LOC:        600         50   Local timer interrupts
IWI:         70          8   IRQ work interrupts
RES:          5          5   Rescheduling interrupts
"""
FILES = {
    "/proc/interrupts": INTERRUPTS,
    "/sys/block/vdb/stat": "  400  0  3200  90  600  0  4800  80  0  100  170  0  0  0  0  0  0\n",
}


@pytest.fixture
def guest() -> Any:
    return SimpleNamespace(
        read_text=FILES.__getitem__,
        run=lambda argv: SimpleNamespace(stdout="/sys/devices/pci0000:00/0000:00:03.0/virtio2\n"),
    )


def test_counts_the_disk_and_only_the_disk(guest: Guest) -> None:
    assert disks.counters(guest, DISKS[0]) == (1000, 1101, 728)


def test_the_timer_of_arm64_is_a_cpus_own(guest: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = " 11:       1410       1501     GICv3  27 Level     arch_timer"
    table = INTERRUPTS.replace("LOC:        600         50   Local timer interrupts", timer)
    monkeypatch.setitem(FILES, "/proc/interrupts", table)
    assert disks.counters(guest, DISKS[0]) == (1000, 1101, 1410 + 1501 + 78)


def test_a_disks_interrupts_that_the_cpus_own_replace_are_not_saved(
    guest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {"read": {"iops": 300.0}, "write": {"iops": 100.0}}
    jobs = {"jobs": [{"jobname": workload, **said} for workload in disks.WORKLOADS]}
    guest.machine = SimpleNamespace(append="maxcpus=1")
    guest.run = lambda argv: SimpleNamespace(stdout=json.dumps(jobs))
    counted = iter([(1000, 50, 200), (1100, 55, 310)])
    monkeypatch.setattr(disks, "counters", lambda guest, disk: next(counted))
    values = disks.measure_one(guest, DISKS[1])
    assert values.keys() == {x.name for x in disks.metrics(DISKS[1:])}
    assert (values["irqs_per_io_20us"], values["own_irqs_per_io_20us"]) == (0.05, 1.1)
    assert values["all_irqs_per_io_20us"] == 1.15


def test_counts_both_ways_of_the_network(guest: Guest) -> None:
    assert poll_source_net.device_interrupts(guest) == 23


def test_each_disk_has_its_own_metrics() -> None:
    names = [metric.name for metric in disks.metrics(DISKS)]
    assert len(set(names)) == len(names) == 12
    assert {"randread_iops", "randread_20us_iops", "irqs_per_io", "irqs_per_io_20us"} <= set(names)


def test_the_file_has_the_disks_metrics() -> None:
    experiment = poll_source_file.EXPERIMENT
    assert {"randread_iops", "irqs_per_io"} < {
        x.name for x in disks.metrics(poll_source_file.DISKS)
    }
    assert list(experiment.devices.options()) == [
        ("object", "iothread,id=thread-vdb"),
        ("drive", "id=vdb,scratch=64M,format=raw,cache=none,aio=threads"),
        ("device", "virtio-blk-pci,drive=vdb,iothread=thread-vdb"),
    ]


SOURCES = """\
cpu name state polls hits misses peeks peek_ns overruns handled handle_ns holds expired
0 virtio0-req.0 on 10 1 9 40 9000 0 3 500 0 0
1 virtio0-req.1 off 0 0 0 0 0 1 0 0 0 0
1 virtio2-input.0 on 0 0 0 0 0 0 0 0 0 0
"""


def test_a_source_that_was_switched_off_is_none() -> None:
    assert poll_source_off.sources(SOURCES) == 2
    assert poll_source_off.sources(SOURCES.splitlines()[0]) == 0
    assert poll_source_off.sources("") == 0, "of a driver without sources"


def test_a_silent_guest_without_a_source_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = "12.50 20.00\ncpu  5 0 9 1000 200 0 0 0 0 0\n"
    later = "132.50 20.00\ncpu  5 0 9 13000 200 0 0 0 0 0\n"
    outputs = iter([f"{slept}\n{later}", SOURCES])
    guest: Any = SimpleNamespace(
        run=lambda argv, timeout_s=60: SimpleNamespace(stdout=next(outputs)),
        machine=SimpleNamespace(vcpus=1),
    )
    monkeypatch.setattr(poll_source_off, "measure_pipe", lambda _: {"sched_pipe_s": 0.3})
    experiment = poll_source_off.EXPERIMENT
    assert isinstance(experiment.metrics, tuple)
    found = poll_source_off.measure(guest)
    assert found == {"sched_pipe_s": 0.3, "asleep_pct": 100, "sources": 2}
    assert found.keys() == {x.name for x in experiment.metrics}
    counted = {x.arm: x for x in experiment.claims if x.metrics == ("sources",)}
    assert (counted["silent"].least, counted["with"].most) == (1, 0)


def test_what_is_polled_is_not_slept() -> None:
    stock = "12.50 20.00\ncpu  5 0 9 1000 200 0 0 0 0 0\n"
    assert poll_source_off.asleep_s(stock) == (12.5, 12)
    assert poll_source_off.asleep_s(f"{stock}500000000\n1000000000\n") == (12.5, 10.5)
