# SPDX-License-Identifier: GPL-2.0-only
"""poll_source in guests: with a device that is a word in memory, and with virtio devices."""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePath

import pytest
import virtio_guests
from booted import boot
from kernels import FIRST, RC, RT, WITHOUT_RT
from ktap import run_selftest
from virtio_guests import (
    DISKS,
    NETWORKS,
    TRIES,
    check_polled,
    pauses,
    run_virtio,
    set_up_network,
)

from lightsleep.lab.boot.accel import Wanted
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Devices, Machine

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0

# The first source and the last one patch the kernel's code: see test_synthetic.py.
ACCEL: Wanted = "tcg-single"

ROUNDS, FEWER_ROUNDS = 50, 8
"""How often a source or its CPU comes and goes; and how often each, and a virtio device, does in
make check, beside other tests."""

RINGS = {"split": "event_idx=off", "event-idx": "event_idx=on", "packed": "packed=on"}


@pytest.mark.parametrize("kernel", WITHOUT_RT)
def test_a_word_in_memory(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel=ACCEL), f"poll-source-{kernel}", ENOUGH_S) as guest:
        rounds = FEWER_ROUNDS if kernel == FIRST else ROUNDS
        result = run_selftest(guest, "poll_source.sh", tries=TRIES, ROUNDS=rounds)
        budget = run_selftest(guest, "poll_source_budget.sh", tries=TRIES)
    assert not result.failed
    assert not budget.failed
    assert not budget.skipped
    # Where one thread runs all CPUs, a halted one may wake as fast as one that polls: the next test
    # has a thread for each. Debian's kernels do not account the time of interrupts: 6.12-teo does,
    # and test_built_kernels.py lets it skip nothing of that.
    assert set(result.skipped) <= {"is_a_wake_to_learn_from", "is_interrupt_time"}


@pytest.mark.more
def test_a_hit_is_a_wake_to_learn_from() -> None:
    with boot(Machine(accel="tcg"), "poll-source-learns", ENOUGH_S) as guest:
        result = run_selftest(guest, "poll_source.sh", "is_a_wake_to_learn_from", tries=TRIES)
    assert result.passed == ["is_a_wake_to_learn_from"]


def virtio_machine(kernel: str, ring: str, disk: str = "") -> Machine:
    """Return a guest with a second disk, which answers at once and holds nothing, and a network."""
    return Machine(
        kernel=kernel,
        accel=ACCEL,
        # Behind a bridge, so that it can be reset.
        devices=Devices(
            device=(
                "pci-bridge,id=bridge,chassis_nr=1",
                f"virtio-blk-pci,drive=second,bus=bridge,addr=1,{RINGS[ring]}{disk}",
                f"virtio-net-pci,netdev=net,{RINGS[ring]}",
            ),
            drive=("driver=null-co,id=second,size=64M,read-zeroes=on",),
            netdev=("user,id=net,ipv6=off",),
        ),
    )


@pytest.mark.parametrize("kernel", WITHOUT_RT)
def test_virtio_devices(kernel: str) -> None:
    rounds = FEWER_ROUNDS if kernel == FIRST else virtio_guests.ROUNDS
    with boot(virtio_machine(kernel, "event-idx"), f"virtio-poll-{kernel}", ENOUGH_S) as guest:
        set_up_network(guest)
        networks = run_virtio(guest, NETWORKS, rounds=rounds)
        disks = run_virtio(guest, DISKS, rounds=rounds)
    assert not networks.failed
    assert not disks.failed
    assert not networks.skipped
    # Drivers that survive a reset of their PCI device came with 6.14.
    assert disks.skipped == ([] if kernel in ("backports", RC) else ["survives_a_reset"])


@pytest.mark.more
def test_a_realtime_kernel_polls_no_device() -> None:
    with boot(virtio_machine(RT, "event-idx"), "poll-source-rt", ENOUGH_S) as guest:
        words = [run_selftest(guest, f"poll_source{x}.sh", tries=TRIES) for x in ("", "_budget")]
        disks = run_virtio(guest, DISKS)
    assert [x.passed for x in words] == [["refuses_a_realtime_kernel"]] * 2
    assert disks.passed == ["polls_nothing_on_a_realtime_kernel"]


SERIES = "6.12-series"
UNLESS_IT_PAYS = {
    *("polls_every_queue", "spares_interrupts", "polls_a_network_device"),
    *("leaves_napi_with_a_timeout_alone", "survives_hotplug"),
}
"""The idle loop polls only where that pays, and leaves its cores to a host that needs them. Where
QEMU runs all CPUs in one thread, it never pays: so these guests have a thread for each."""


@pytest.mark.more
@pytest.mark.build
def test_the_idle_loop_looks_at_a_word_in_memory() -> None:
    with boot(Machine(kernel=SERIES, accel="tcg"), "poll-source-series", ENOUGH_S) as guest:
        result = run_selftest(guest, "poll_source.sh", tries=TRIES)
        budget = run_selftest(guest, "poll_source_budget.sh", tries=TRIES)
    assert not result.failed
    assert not budget.failed
    assert "comes_and_goes_while_polled" not in result.skipped


@pytest.mark.more
@pytest.mark.build
@pytest.mark.parametrize(
    ("ring", "queues"), [("event-idx", 2), ("event-idx", 1), ("split", 2), ("packed", 1)]
)
def test_virtio_drivers_have_the_idle_loop_look(ring: str, queues: int) -> None:
    """A disk has a queue for each CPU, or one for both."""
    machine = replace(virtio_machine(SERIES, ring, f",num-queues={queues}"), accel="tcg")
    with boot(machine, f"virtio-poll-series-{ring}-{queues}", ENOUGH_S) as guest:
        before = pauses(guest)
        set_up_network(guest)
        networks = run_virtio(guest, NETWORKS)
        disks = run_virtio(guest, DISKS)
        assert not networks.failed
        assert not disks.failed
        assert set(networks.skipped) <= {"follows_the_interrupt", *UNLESS_IT_PAYS}
        assert set(disks.skipped) <= {"survives_a_reset", *UNLESS_IT_PAYS}
        check_polled(guest, DISKS, "polls_every_queue", disks.passed, before)
        check_polled(guest, NETWORKS, "polls_a_network_device", networks.passed, before)


@pytest.mark.more
def test_interrupts_with_threads_are_left_alone() -> None:
    machine = replace(virtio_machine("6.12", "event-idx"), append="threadirqs")
    with boot(machine, "virtio-poll-threadirqs", ENOUGH_S) as guest:
        set_up_network(guest)
        result = run_virtio(guest, DISKS)  # it looks at the sources of all devices
    assert not result.failed
    assert not result.skipped


# Our code calls the same functions of virtio, whichever kind of ring they read: make check has one.
@pytest.mark.more
@pytest.mark.parametrize("ring", ["split", "packed"])
def test_virtio_rings(ring: str) -> None:
    with boot(virtio_machine("6.12", ring), f"virtio-poll-{ring}", ENOUGH_S) as guest:
        set_up_network(guest)
        tests = ("survives_unbinding", "polls_every_queue")
        disks = run_virtio(guest, DISKS, *tests, rounds=FEWER_ROUNDS)
        networks = run_virtio(guest, NETWORKS, "polls_a_network_device", rounds=FEWER_ROUNDS)
    for result in (disks, networks):
        assert not result.failed
        assert not result.skipped


FLIPS = 24
"""How often each thing is changed in the test below; even, so that all ends as it began."""
BETWEEN = 400
"""So many requests there are between two changes, at most."""
STUCK_S = 90.0
"""A disk that has answered nothing for so long will not do so any more."""

CPUS = ("1", "2")
"""Masks of the two."""
CPU1 = "/sys/devices/system/cpu/cpu1/online"
MODULE = "/sys/module/virtio_poll_source"
BUS = "/sys/bus/virtio"

FIO = (
    *("fio", "--name=unrest", "--ioengine=io_uring", "--direct=1", "--bs=4k", "--iodepth=1"),
    *("--eta=never", "--verify=crc32c", "--verify_fatal=1", "--verify_backlog=16"),
)
"""One request after the other: the CPU is idle in between. What is written is soon read."""
REPORT = "/tmp/fio.json"


class Unrest:
    """A disk that is written and verified all the time, another one, and what can be changed."""

    def __init__(self, guest: Guest, seed: int) -> None:
        self.guest = guest
        self.chance = random.Random(seed)
        self.disk, self.other = (self.virtio_of(x) for x in ("vdb", "vdc"))
        self.done: list[str] = []
        self.hits = 0
        self.last_hits = 0
        fio = " ".join([*FIO, "--filename=/dev/vdb", "--rw=randwrite", "--time_based"])
        pid = self.sh(
            f"taskset 2 {fio} --runtime=1d --output-format=json --output={REPORT} "
            "< /dev/null > /tmp/fio.log 2>&1 & echo $!"
        )
        self.fio = f"/proc/{pid.strip()}"
        self.moved: set[str] = set()
        self.kinds: dict[str, Callable[[], str | None]] = {
            "CPU": self.flip_cpu,
            "module": self.flip_module,
            "switch": self.flip_switch,
            "driver": self.flip_driver,
            "task": self.move_task,
            "interrupts": self.move_interrupts,
        }

    def sh(self, script: str) -> str:
        return self.guest.run(["sh", "-c", script], timeout_s=ENOUGH_S).stdout

    def there(self, path: str) -> bool:
        return self.guest.run(["test", "-e", path], check=False).rc == 0

    def virtio_of(self, disk: str) -> str:
        return PurePath(self.sh(f"readlink -f /sys/block/{disk}/device").strip()).name

    def requests(self) -> int:
        stat = self.guest.read_text("/sys/block/vdb/stat").split()
        return int(stat[0]) + int(stat[4])

    # What changes. Each returns what it did, or None where that cannot be done now.

    def flip_cpu(self) -> str:
        online = self.guest.read_text(CPU1).strip()
        self.guest.write_text(CPU1, str(1 - int(online)), ENOUGH_S)
        return f"CPU 1 {'offline' if online == '1' else 'online'}"

    def flip_module(self) -> str:
        if self.there(MODULE):
            self.sh("rmmod virtio_poll_source")
            return "module unloaded"
        self.guest.insmod("virtio_poll_source")
        return "module loaded"

    def flip_switch(self) -> str | None:
        switch = f"{BUS}/devices/{self.disk}/poll_source"
        if not self.there(switch):
            return None
        value = str(1 - int(self.guest.read_text(switch)))
        self.guest.write_text(switch, value)
        return f"switch {value}"

    def flip_driver(self) -> str:
        driver = f"{BUS}/drivers/virtio_blk"
        if not self.there(f"{driver}/{self.other}"):
            self.guest.write_text(f"{driver}/bind", self.other)
            disk = self.sh(f"ls {BUS}/devices/{self.other}/block").strip()
            # Nothing is lost where nothing is taken away.
            self.sh(f"{' '.join(FIO)} --filename=/dev/{disk} --rw=randwrite --size=512k")
            return f"{disk} bound and verified"
        disk = self.sh(f"ls {BUS}/devices/{self.other}/block").strip()
        # Requests fail that are under way. (fio does not end then, dd does.)
        self.sh(
            f"while dd if=/dev/{disk} of=/dev/null bs=4k iflag=direct 2> /dev/null; "
            f"do :; done & sleep 0.{self.chance.randrange(10, 60)}; "
            f"echo {self.other} > {driver}/unbind; wait $!"
        )
        return f"{disk} unbound"

    def move_task(self) -> str | None:
        if self.guest.read_text(CPU1).strip() != "1":
            return None
        mask = self.chance.choice(CPUS)
        self.sh(f"for pid in $(pgrep -x fio); do taskset -p {mask} $pid; done")
        return f"fio on mask {mask}"

    def move_interrupts(self) -> str:
        mask = self.chance.choice((*CPUS, "3"))
        took = self.sh(
            "for irq in /proc/irq/*/smp_affinity; do "
            f"echo {mask} 2> /dev/null > $irq && echo ${{irq%/*}}/*/; done; true"
        )
        self.moved |= {PurePath(x).name for line in took.splitlines() for x in line.split()} - {"*"}
        return f"interrupts on mask {mask}"

    # How it goes.

    def count_hits(self) -> None:
        """Add what the first disk's sources have had since; unloading and switching forget it."""
        table = self.guest.read_text("/sys/kernel/debug/poll_source")
        hits = sum(int(x) for x in re.findall(rf"(?m)^\d+ {self.disk}-\S+ \S+ \d+ (\d+)", table))
        self.hits += hits - self.last_hits if hits >= self.last_hits else hits
        self.last_hits = hits

    def await_requests(self, count: int) -> None:
        """Wait until the disk has done so many more. Fails where it does no more, or fio ended."""
        last, since = self.requests(), time.monotonic()
        until = last + count
        while last < until:
            time.sleep(0.05)
            now = self.requests()
            if now > last:
                last, since = now, time.monotonic()
            elif not self.there(self.fio):
                pytest.fail(f"fio ended after {self.done[-5:]}: {self.sh('cat /tmp/fio.log')}")
            elif time.monotonic() > since + STUCK_S:
                pytest.fail(f"the disk is stuck after {self.done[-5:]}")

    def run(self) -> None:
        left = Counter(dict.fromkeys(self.kinds, FLIPS))
        while left:
            (kind,) = self.chance.choices(list(left), list(left.values()))
            self.count_hits()
            if (did := self.kinds[kind]()) is None:
                continue
            self.done.append(did)
            left = +(left - Counter([kind]))
            self.await_requests(self.chance.randrange(1, BETWEEN))
        self.count_hits()

    def end(self) -> None:
        """Have fio write its report."""
        self.sh(f"kill -INT {PurePath(self.fio).name}")
        deadline = time.monotonic() + STUCK_S
        while self.there(self.fio):
            assert time.monotonic() < deadline, "fio does not end"
            time.sleep(0.1)


@pytest.mark.more
@pytest.mark.parametrize("ring", RINGS)
def test_a_disk_keeps_its_word_whatever_changes(ring: str) -> None:
    seed = int(os.environ.get("UNREST_SEED", random.randrange(2**31)))
    print(f"UNREST_SEED={seed}")
    machine = Machine(
        kernel=FIRST,
        accel=ACCEL,
        modules=(
            "cpuidle_lightsleep mode=fixed poll_limit_us=10000 peek_budget_ns=50000",
            "virtio_poll_source",
        ),
        devices=Devices(
            device=tuple(
                f"virtio-blk-pci,drive={disk},iothread=thread,{RINGS[ring]}"
                for disk in ("vdb", "vdc")
            ),
            drive=("id=vdb,scratch=64M,format=raw", "id=vdc,scratch=8M,format=raw"),
            object=("iothread,id=thread",),
        ),
    )
    with boot(machine, f"poll-source-unrest-{ring}", ENOUGH_S) as guest:
        unrest = Unrest(guest, seed)
        unrest.await_requests(BETWEEN)
        start = time.monotonic()
        unrest.run()
        took_s = time.monotonic() - start
        requests = unrest.requests()
        unrest.end()
        report = guest.read_text(REPORT)
        log = guest.run(["dmesg"]).stdout
    (job,) = json.loads(report[report.index("{") :])["jobs"]
    written, verified = job["write"]["total_ios"], job["read"]["total_ios"]
    print(
        f"{ring}: {len(unrest.done)} changes in {took_s:.0f} s, {written} requests written, "
        f"{verified} verified, {unrest.hits} hits of {requests}; moved: {sorted(unrest.moved)}"
    )
    assert job["error"] == 0
    assert "error, dev vdb" not in log
    assert verified > 0.9 * written > 0
    assert unrest.hits > 0.05 * requests
    # Others can be moved, those of disks cannot: this is what polling them rests on.
    assert unrest.moved
    assert not [x for x in unrest.moved if "-req." in x]
