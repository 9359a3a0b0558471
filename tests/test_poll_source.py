# SPDX-License-Identifier: GPL-2.0-only
"""poll_source in guests: with a device that is a word in memory, and with virtio devices."""

import pytest
from kernels import WITHOUT_RT
from ktap import Result, run_selftest

from lightsleep.lab.accel import Wanted
from lightsleep.lab.guest import Guest, Machine, boot

pytestmark = pytest.mark.boot

ENOUGH_S = 300.0

# The first source and the last one patch the kernel's code: see test_synthetic.py.
ACCEL: Wanted = "tcg-single"

RINGS = {"split": "event_idx=off", "event-idx": "event_idx=on", "packed": "packed=on"}


@pytest.mark.parametrize("kernel", WITHOUT_RT)
def test_a_word_in_memory(kernel: str) -> None:
    with boot(Machine(kernel=kernel, accel=ACCEL), f"poll-source-{kernel}", ENOUGH_S) as guest:
        result = run_selftest(guest, "poll_source.sh")
    assert not result.failed
    # There, a halted CPU may wake as fast as one that polls.
    assert set(result.skipped) <= {"is_a_wake_to_learn_from", "is_interrupt_time"}


def virtio_machine(kernel: str, ring: str) -> Machine:
    """Return a guest with a second disk, which answers at once and holds nothing, and a network."""
    return Machine(
        kernel=kernel,
        accel=ACCEL,
        # Behind a bridge, so that it can be reset.
        devices=(
            "pci-bridge,id=bridge,chassis_nr=1",
            f"virtio-blk-pci,drive=second,bus=bridge,addr=1,{RINGS[ring]}",
            f"virtio-net-pci,netdev=net,{RINGS[ring]}",
        ),
        drives=("driver=null-co,id=second,size=64M,read-zeroes=on",),
        netdevs=("user,id=net,ipv6=off",),
    )


def run_virtio(guest: Guest, *tests: str) -> Result:
    """Run the selftest, all of it or only ``tests``, with QEMU's own network to talk to."""
    for words in (("addr", "add", "10.0.2.15/24", "dev", "eth0"), ("link", "set", "eth0", "up")):
        guest.run(["busybox", "ip", *words])
    return run_selftest(guest, "virtio_poll_source.sh", *tests, PEER="10.0.2.2")


@pytest.mark.parametrize("kernel", WITHOUT_RT)
def test_virtio_devices(kernel: str) -> None:
    with boot(virtio_machine(kernel, "event-idx"), f"virtio-poll-{kernel}", ENOUGH_S) as guest:
        result = run_virtio(guest)
    assert not result.failed
    # Drivers that survive a reset of their PCI device came with 6.14.
    assert result.skipped == ([] if kernel == "7.2" else ["survives_a_reset"])


@pytest.mark.parametrize("ring", ["split", "packed"])
def test_virtio_rings(ring: str) -> None:
    with boot(virtio_machine("6.12", ring), f"virtio-poll-{ring}", ENOUGH_S) as guest:
        result = run_virtio(
            guest, "survives_unbinding", "polls_every_queue", "polls_a_network_device"
        )
    assert not result.failed
    assert not result.skipped
