# SPDX-License-Identifier: GPL-2.0-only
"""The tutorial's own commands, typed into a guest, leave the machine as it was."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import debian_roots
import pytest
from paths import ROOT

from lightsleep import cache
from lightsleep.lab import host
from lightsleep.lab.boot.guest import Guest, prepare
from lightsleep.lab.boot.machine import Devices, ForeignKernel, Machine
from lightsleep.lab.kernels.roots import squashed

pytestmark = [
    pytest.mark.boot,
    pytest.mark.build,
    pytest.mark.more,
    pytest.mark.skipif(os.geteuid() != 0, reason="sets up a root file system"),
]

PAGE = ROOT / "docs/tutorial.md"
MEMORY_MIB = 1536
"""What apt and a compiler need beside the files that they write, which are in memory."""
ENOUGH_S = 1200.0

# The machine's disk is read-only, and what was written since is on the second disk at the end of a
# boot. It takes the place of the lab's root for all processes: in a chroot, lightsleep
# changes no settings.
MOUNT = """\
    mount() { busybox mount "$@"; }
    mkdir -p /lower /over /machine
    mount -t squashfs -o ro /dev/vdb /lower
    mount -t tmpfs -o size=75% tmpfs /over
    mkdir -p /over/upper /over/work
    mount -o bind /over /lower/mnt
    mount -o bind /dev /lower/dev
    chroot /lower tar -C /mnt/upper --xattrs --xattrs-include='*' -xf /dev/vdc
    mount -t overlay -o lowerdir=/lower,upperdir=/over/upper,workdir=/over/work overlay /machine
    for folder in proc sys dev; do mount -o rbind /$folder /machine/$folder; done
    mount -t tmpfs tmpfs /machine/run
    mount -t tmpfs tmpfs /machine/tmp
    busybox ip link set lo up
    mkdir -p /machine/run/lab
    busybox pivot_root /machine /machine/run/lab
"""
LEAVE = "pivot_root /run/lab /run/lab/machine"
SAVE = "chroot /lower tar -C /mnt/upper --xattrs --xattrs-include='*' -cf /dev/vdc ."
BOOTED = "/usr/lib/systemd/systemd-modules-load"

# Every file, link and setting of idle, and the modules that are loaded; counters differ.
STATE = """\
    cut -d' ' -f1 /proc/modules | sort
    find /etc /lib/modules/ -type f -exec sha256sum {} + | sort -k2
    find /etc /lib/modules/ -type l -printf '%p -> %l\\n' | sort
    find /etc /lib/modules/ -type d | sort
    find /usr /var/lib -name '*lightsleep*' -not -path '*/dpkg/*' | sort
    grep -s . /sys/devices/system/cpu/cpuidle/* | sort
    grep -s . /sys/devices/system/cpu/cpu*/cpuidle/state*/disable | sort
    ls /sys/module
"""

MAY_SAY_NO = "sudo lightsleep try"
"""On a busy host, its control may differ."""


def commands() -> list[str]:
    """Return what the page says to type on a cloud image, as the machine has that kernel.

    Emulated CPUs are slow: a run of the benchmark takes seconds there with fewer requests, too.
    """
    text = re.sub(r"linux-headers-amd64 +# of a cloud image: ", "", PAGE.read_text())
    text = text.replace("-n 200000", "-n 30000")
    return re.findall(r"(?m)^    (\S.*)$", text)


def outputs() -> list[str]:
    """Return the lines that commands print, as the page says."""
    blocks = re.findall(r"(?ms)^```text\n(.*?)^```$", PAGE.read_text())
    return [line for block in blocks for line in block.splitlines()]


def test_the_page_goes_all_the_way() -> None:
    verbs = [line.split()[-1] if "reboot" in line else line for line in commands()]
    wanted = "make deb", "scan", "measure", "try", "enable --persist", "reboot", "disable", "purge"
    found = [next(i for i, line in enumerate(verbs) if word in line) for word in wanted]
    assert found == sorted(found)


def disk(tree: Path) -> Path:
    """Return the disk of a machine with Debian and its kernel's headers."""

    def build(scratch: Path) -> None:
        squashed(tree, scratch / "disk")

    return cache.entry(f"{tree.parent.name}-disk", build, needs_mb=2000) / "disk"


class Computer:
    """A machine that keeps its files when it reboots."""

    def __init__(self, folder: Path, suite: str) -> None:
        tree = debian_roots.cached(suite, debian_roots.MACHINES[suite])
        (image,) = (tree / "boot").glob("vmlinuz-*")
        self.state = folder / "state"
        drives = (
            f"id=disk,file={disk(tree)},format=raw,readonly=on",
            f"id=state,file={self.state},format=raw",
        )
        devices = tuple(f"virtio-blk-pci,drive={x},bus=pcie.0" for x in ("disk", "state"))
        self.machine = Machine(
            foreign=ForeignKernel(image=image, modules=tree / "lib/modules"),
            devices=Devices(drive=drives, device=devices),
            accel="tcg",
        )
        hardware = prepare(self.machine)
        self.hardware = replace(hardware, arch=replace(hardware.arch, memory_mib=MEMORY_MIB))

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[Guest]:
        """Boot it, and keep what was written when it is shut down."""
        guest = Guest(self.machine, self.hardware, name)
        try:
            guest.wait(ENOUGH_S)
            guest.run(["bash", "-ec", textwrap.dedent(MOUNT)], timeout_s=ENOUGH_S)
            yield guest
            guest.run(["sh", "-ec", LEAVE], timeout_s=ENOUGH_S)
            guest.run(["sh", "-ec", SAVE], timeout_s=ENOUGH_S)
            guest.check()
        finally:
            guest.close()


def typed(guest: Guest, line: str, environment: str = "") -> str:
    """Run a line in the machine and return what it printed."""
    argv = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"]
    argv += ["LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive", "TERM=dumb", "COLUMNS=100"]
    done = guest.run([*argv, "bash", "-c", f"cd /root; {line}"], timeout_s=ENOUGH_S, check=False)
    print(f"$ {line}\n{done.stdout}{done.stderr}", flush=True)
    undecided = line.startswith(MAY_SAY_NO) and "the control differs" in done.stderr
    assert done.rc == 0 or undecided, f"{line}: {done.rc}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("suite", debian_roots.MACHINES)
def test_the_tutorial_leaves_nothing(suite: str, tmp_path: Path) -> None:
    lines = commands()
    assert lines[0] == "make deb"
    host.run(["make", "-C", ROOT, f"OUT={tmp_path}/files/root/out", "deb"], "make deb", 1800)
    assume = tmp_path / "files/etc/apt/apt.conf.d/yes"
    assume.parent.mkdir(parents=True)
    assume.write_text('APT::Get::Assume-Yes "true";\n')
    sudo = tmp_path / "files/usr/bin/sudo"  # who types is root already
    sudo.parent.mkdir(parents=True)
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o755)
    reboot = lines.index("sudo reboot")
    computer = Computer(tmp_path, suite)
    owner = ["--owner=0", "--group=0"]
    tar = ["tar", "-C", f"{tmp_path}/files", *owner, "-cf", str(computer.state), "."]
    host.run(tar, "writing the disk")
    os.truncate(computer.state, 256 << 20)
    with computer.on(f"tutorial-{suite}") as guest:
        state = textwrap.dedent(STATE)
        before = typed(guest, state)
        said = {line: typed(guest, line) for line in lines[1:reboot]}
        printed = " ".join(" ".join(said.values()).split())
        assert outputs()
        for line in outputs():
            assert " ".join(line.split()) in printed
    with computer.on(f"tutorial-{suite}-rebooted") as guest:
        typed(guest, BOOTED)
        for line in lines[reboot + 1 :]:
            typed(guest, line)
        assert typed(guest, state) == before
    shutil.rmtree(tmp_path / "files")
