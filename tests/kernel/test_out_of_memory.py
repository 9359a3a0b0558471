# SPDX-License-Identifier: GPL-2.0-only
"""Our modules where memory is short: each of their allocations fails once, and nothing is left."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from booted import boot

from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.initramfs import GUEST_MODULES
from lightsleep.lab.boot.machine import Machine

pytestmark = [pytest.mark.boot, pytest.mark.build, pytest.mark.more]

PROGRAM = Path(__file__).parent / "fail_nth.py"
KMEMLEAK = "/sys/kernel/debug/kmemleak"
YOUNG_S = 6
"""For how long kmemleak takes what nobody points to for new (5 s)."""
ENOUGH_S = 1200.0
CPU = "/sys/devices/system/cpu"
CPUS = ("cpuhp/0", "cpuhp/1")
"""The threads in which a CPU gets its idle device."""

MODULES = {
    "cpuidle_lightsleep": "",
    "cpuidle_synthetic": "states=A:1:1,B:100:200",
    "test_cpuidle_latency": "",
}
"""Module -> its parameters."""


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    """A guest that notices memory which nobody frees; after the tests, there is none."""
    machine = Machine(kernel="6.12-debug", accel="tcg-single")
    with boot(machine, "out-of-memory", ENOUGH_S) as guest:
        guest.write_text("/tmp/fail_nth.py", PROGRAM.read_text())
        guest.write_text(KMEMLEAK, "clear")
        yield guest
        time.sleep(YOUNG_S)
        # Twice: what the first finds may be on its way.
        for _ in range(2):
            guest.write_text(KMEMLEAK, "scan", ENOUGH_S)
        assert guest.read_text(KMEMLEAK, ENOUGH_S) == ""


def outcomes(guest: Guest, call: str, *words: str, threads: tuple[str, ...] = ()) -> list[int]:
    """Let each allocation of a call fail; return what the call answered."""
    order = json.dumps({"call": call, "words": words, "threads": threads})
    done = guest.run(["python3", "/tmp/fail_nth.py", order], ENOUGH_S)
    answered: list[int] = json.loads(done.stdout)
    return answered


@contextmanager
def loaded(guest: Guest, *modules: str) -> Iterator[None]:
    """Load modules for a while."""
    for module in modules:
        guest.insmod(module)
    yield
    for module in reversed(modules):
        guest.run(["rmmod", module.split()[0]])


def file_of(module: str) -> str:
    return f"{GUEST_MODULES}/{module}.ko"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_loads_whole_or_not_at_all(guest: Guest, module: str) -> None:
    answered = outcomes(guest, "load", file_of(module), MODULES[module])
    assert answered, "none of its allocations failed"
    # EINVAL is what the driver core makes of some of its own.
    assert set(answered) <= {0, errno.ENOMEM, errno.EINVAL}
    assert guest.run(["lsmod"]).stdout.find(module) < 0
    assert guest.read_text(f"{CPU}/cpuidle/current_driver").strip() == "none"


@pytest.mark.parametrize("module", ["cpuidle_lightsleep", "cpuidle_synthetic"])
def test_a_cpu_without_memory_idles_as_before(guest: Guest, module: str) -> None:
    answered = outcomes(guest, "load", file_of(module), MODULES[module], threads=CPUS)
    assert answered
    assert set(answered) == {0}
    assert "cannot be registered: error -12" in guest.run(["dmesg"]).stdout


def test_a_device_without_memory_goes_on_as_before(guest: Guest) -> None:
    with loaded(guest, "cpuidle_lightsleep"):
        answered = outcomes(guest, "load", file_of("virtio_poll_source"), "enable=1")
    assert answered
    assert set(answered) <= {0, errno.ENOMEM, errno.EINVAL}
    assert "not polled: error -12" in guest.run(["dmesg"]).stdout
    guest.run(["dd", "if=/dev/vda", "of=/dev/null", "bs=64k", "count=100", "iflag=direct"])


def test_switching_a_disk_fails_whole(guest: Guest) -> None:
    with loaded(guest, "cpuidle_lightsleep", "virtio_poll_source enable=0"):
        switch = "/sys/block/vda/device/poll_source"
        answered = outcomes(guest, "write", switch, "1", "0")
        assert errno.ENOMEM in answered
        assert set(answered) <= {0, errno.ENOMEM}  # what looks for leaks allocates, too
        guest.write_text(switch, "1")
        assert "req.0" in guest.read_text("/sys/kernel/debug/poll_source")


def test_a_batch_of_wakes_that_gets_no_memory_says_so(guest: Guest) -> None:
    with loaded(guest, "test_cpuidle_latency"):
        batch = "ipi 0 1 0 10 100000 200000 100000000"
        answered = outcomes(guest, "write", "/sys/kernel/debug/latency_test/run", batch)
        assert set(answered) == {0, errno.ENOMEM}  # a thread may go without its name
