# SPDX-License-Identifier: GPL-2.0-only
"""What requests over the network gain when idle CPUs poll a virtio device for the answers.

The guest asks, the host answers, over and over, each time one small message. QEMU carries the
messages, in a thread of its own, which takes turns with the program that answers on one more CPU of
the host. Once it answers at once, when an emulated CPU that has just asked is not idle yet, and
once it takes its time, as a server does that has something to do: then the guest's only CPU waits
for the answer.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import socketserver
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator

from lightsleep.compare.result import Claim
from lightsleep.errors import LightsleepError
from lightsleep.lab import host
from lightsleep.lab.boot.guest import Guest
from lightsleep.lab.boot.machine import Devices
from lightsleep.lab.loads.interrupts import TABLE, total
from lightsleep.lab.run.arms import NEVER_HALT
from lightsleep.lab.run.experiment import Arm, Experiment, Metric

DRIVER = "cpuidle_lightsleep mode=fixed poll_limit_us=1000"
"""Polls for longer than an answer takes, whatever a wake costs on this host at this time."""
INTERFACE = "eth0"
GUEST = "10.0.2.15/24"
HOST = "10.0.2.2"
"""Addresses in QEMU's network of its own; the second one leads to the host itself."""

CLIENT = ("sockperf", "ping-pong", "--tcp", "--msg-size", "64", "--time", "2", "-i", HOST)

READY_S = 20.0
PROBE_EVERY_S = 0.05
"""How long the server may take until it listens, and how often it is asked."""

LATE_US = 200
"""How much later the answer comes that does not come at once, at least."""

METRICS = (
    Metric(
        "rr_per_s",
        "/s",
        "higher",
        "Requests and responses, answered at once",
        f"Pairs per second that the guest exchanges with the host: {' '.join(CLIENT)}",
    ),
    Metric(
        "irqs_per_rr",
        "",
        "lower",
        "Interrupts per request",
        "Of the network device, both directions, in /proc/interrupts",
    ),
    Metric(
        "rr_late_per_s",
        "/s",
        "higher",
        f"Requests and responses, answered {LATE_US} us later",
        f"Pairs per second, where the host takes {LATE_US} us or more over every answer",
    ),
    Metric(
        "irqs_per_rr_late",
        "",
        "lower",
        "Interrupts per late answer",
        "Of the network device, both directions, in /proc/interrupts",
    ),
)


def start(_: Guest) -> None:
    """Raise LightsleepError where this machine cannot answer: the first sample comes later."""
    host.need("sockperf", packages={"sockperf": "sockperf"})


def measure(guest: Guest) -> dict[str, float]:
    """Exchange messages with the host for a while, then with one that takes its time."""
    connect(guest)
    with server() as port, late(port) as late_port:
        rr_per_s, irqs_per_rr = exchange(guest, port)
        rr_late_per_s, irqs_per_rr_late = exchange(guest, late_port)
    return {
        "rr_per_s": rr_per_s,
        "irqs_per_rr": irqs_per_rr,
        "rr_late_per_s": rr_late_per_s,
        "irqs_per_rr_late": irqs_per_rr_late,
    }


def exchange(guest: Guest, port: int) -> tuple[float, float]:
    """Return the requests and responses per second, and the interrupts that each pair took."""
    before = device_interrupts(guest)
    output = guest.run([*CLIENT, "-p", str(port)]).stdout
    irqs = device_interrupts(guest) - before
    found = {
        part: re.search(rf"\[{part}\].*RunTime=([\d.]+) sec;.*ReceivedMessages=(\d+)", output)
        for part in ("Total Run", "Valid Duration")
    }
    total, valid = found["Total Run"], found["Valid Duration"]
    if not total or not valid:
        raise LightsleepError(f"{guest.name}: sockperf says\n{output}")
    return int(valid[2]) / float(valid[1]), irqs / int(total[2])


def connect(guest: Guest) -> None:
    """Give the guest its address, unless it has one."""
    if guest.read_text(f"/sys/class/net/{INTERFACE}/flags").strip().endswith("3"):
        return
    for words in (("addr", "add", GUEST, "dev", INTERFACE), ("link", "set", INTERFACE, "up")):
        guest.run(["busybox", "ip", *words])


@contextlib.contextmanager
def server() -> Iterator[int]:
    """Answer on this machine as long as the context lasts; yield the port.

    Raises LightsleepError where nothing listens there in time: the guest asks only once.
    """
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port: int = chosen.getsockname()[1]
    argv = ["setpriv", "--pdeathsig", "KILL", "sockperf", "server", "--tcp", "-i", "127.0.0.1"]
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        subprocess.Popen([*argv, "-p", str(port)], stdout=output, stderr=output) as process,
    ):
        try:
            if not _listens(port, process):
                output.seek(0)
                raise LightsleepError(
                    f"sockperf does not listen on port {port} of this machine: "
                    f"{output.read().strip()[-500:] or '(no output)'}"
                )
            yield port
        finally:
            process.kill()


def _listens(port: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until somebody listens on a port of this machine; return whether it is so in time."""
    deadline = time.monotonic() + READY_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        time.sleep(PROBE_EVERY_S)
    return False


@contextlib.contextmanager
def late(port: int) -> Iterator[int]:
    """Answer as whoever listens on ``port`` does, but later; yield the port to ask."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asks = self.request
            with socket.create_connection(("127.0.0.1", port)) as answers:
                for line in (asks, answers):
                    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while True:
                    for line in select.select([asks, answers], [], [])[0]:
                        message = line.recv(65536)
                        if not message:
                            return
                        if line is answers:
                            time.sleep(LATE_US / 1e6)
                        (asks if line is answers else answers).sendall(message)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as relay:
        relay.daemon_threads = True
        thread = threading.Thread(target=relay.serve_forever)
        thread.start()
        try:
            yield relay.server_address[1]
        finally:
            relay.shutdown()
            thread.join()


def device_interrupts(guest: Guest) -> int:
    """Return how many interrupts the queues of the network device have raised so far."""
    table = guest.read_text(TABLE)
    if not (queues := re.findall(r"(?m) virtio\d+-(?:in|out)put\.\d+$", table)):
        raise LightsleepError(f"{guest.name}: {TABLE} has no row of a queue of a network device")
    return total(table, *queues)


EXPERIMENT = Experiment(
    title="A virtio network device, polled by idle CPUs",
    hypothesis=(
        "A CPU that polls the device itself exchanges more messages than one that is interrupted, "
        "and more than one that polls, but not the device."
    ),
    arms=(
        Arm("irq", "baseline", "stock"),
        Arm("poll", "treatment", "CPUs poll, not the device", modules=(DRIVER,)),
        Arm(
            "poll_source",
            "treatment",
            "CPUs poll, the device as well",
            modules=(DRIVER, "virtio_poll_source"),
        ),
        Arm("idle=poll", "limit", "never halts", append=NEVER_HALT, spins=True),
        Arm("irq-again", "control", "booted as irq is"),
    ),
    metrics=METRICS,
    measure=measure,
    start=start,
    claims=(
        Claim("poll_source", "irq", ("rr_per_s", "rr_late_per_s")),
        Claim("poll_source", "poll", ("rr_per_s", "rr_late_per_s")),
    ),
    vcpus=1,
    served_by_cpus=1,
    devices=Devices(netdev=("user,id=net,ipv6=off",), device=("virtio-net-pci,netdev=net",)),
)
