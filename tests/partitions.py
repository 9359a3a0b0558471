# SPDX-License-Identifier: GPL-2.0-only
"""CPU 1 of a guest in a partition of cpusets: isolated while the guest runs, and let go again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lightsleep.lab.boot.guest import Guest

ROOT = "/run/cgroups"
GROUP = f"{ROOT}/alone"
NOTICED_S = 9
"""Whether CPUs are isolated is looked at every second, or, on a machine at rest, every four."""
ROUNDS = 3000

TALK = f"""
    mkfifo /run/to /run/from
    taskset -c 2 sh -c 'while read _; do echo; done < /run/to > /run/from' &
    taskset -c 0 sh -c '
        [ ! -d {GROUP} ] || echo 0 > {GROUP}/cgroup.procs
        taskset -p 2 $$
        exec > /run/to < /run/from
        for _ in $(seq {ROUNDS}); do echo; read _; done'
    wait
    rm /run/to /run/from
"""
"""CPU 1 asks, CPU 2 answers, and each of them is idle meanwhile."""


@contextmanager
def isolated(guest: Guest) -> Iterator[None]:
    """Isolate CPU 1."""
    guest.run(["sh", "-c", f"mkdir -p {ROOT} && busybox mount -t cgroup2 none {ROOT}"])
    guest.write_text(f"{ROOT}/cgroup.subtree_control", "+cpuset")
    guest.run(["mkdir", GROUP])
    guest.write_text(f"{GROUP}/cpuset.cpus", "1")
    guest.write_text(f"{GROUP}/cpuset.cpus.partition", "isolated")
    assert guest.read_text(f"{GROUP}/cpuset.cpus.partition").strip() == "isolated"
    yield
    guest.write_text(f"{GROUP}/cpuset.cpus.partition", "member")
    guest.run(["sh", "-c", f"rmdir {GROUP} && busybox umount {ROOT}"])


def talk(guest: Guest) -> None:
    """Have CPU 1 talk with CPU 2, as long as any of the driver's experiments needs."""
    guest.run(["sh", "-c", TALK], timeout_s=120)
