# SPDX-License-Identifier: GPL-2.0-only
"""Recordings of scan are faithful and anonymous, and destroy nothing."""

import os
import resource
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from scan_trees import NAMES, plant, unfold
from scans import run

from lightsleep.scan.collect import PARTITIONS, collect
from lightsleep.scan.model import Scan


def comparable(result: Scan) -> Scan:
    return replace(result, problems={}, kernel=replace(result.kernel, release=None))


@pytest.mark.parametrize("machine", NAMES)
def test_recording_scans_as_the_machine_did(machine: str, tmp_path: Path) -> None:
    root = unfold(machine, tmp_path / "machine")
    archive = tmp_path / "machine.tar.gz"
    assert run("--root", root, "--record", archive).exit_code == 0
    with tarfile.open(archive) as tar:
        # From Python 3.11.4 on; Debian 12 has 3.11.2.
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(tmp_path / "copy")
    assert comparable(collect(tmp_path / "copy")[0]) == comparable(collect(root)[0])


def test_a_recording_has_the_cpus_that_partitions_isolate(tmp_path: Path) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    plant(root, f"{PARTITIONS}: 2-3")
    _, tree = collect(root)
    assert tree.read[PARTITIONS] == b"2-3\n"


def test_recording_gives_nobody_away(tmp_path: Path) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    blacklist = "module_blacklist=secret16,cpuidle_lightsleep"
    plant(
        root,
        f"""
        proc/cmdline: root=UUID=secret1 ip=secret2 idle=halt {blacklist} -- secret3
        proc/sys/kernel/osrelease: 6.12.0-secret4
        proc/sys/kernel/hostname: secret5
        proc/cpuinfo: model name : Common CPU
        proc/cpuinfo: flags : fpu secret6 monitor tdx_guest
        proc/cpuinfo: bugs : secret17 apic_c1e
        proc/cpuinfo: Serial : secret7
        proc/interrupts: 27: 4 PCI-MSIX-0000:00:01.0 1-edge virtio0-req.0
        proc/interrupts: 30: 9 PCI-MSIX-0000:00:03.0 1-edge secret15-rx-0
        sys/class/dmi/id/sys_vendor: QEMU secret8
        sys/class/dmi/id/product_name: secret9
        sys/class/dmi/id/product_serial: secret10
        sys/class/block/md_secret11/queue/io_poll: 0
        sys/class/net/eth0/address: secret12
        etc/machine-id: secret13
        proc/device-tree/ibm,partition-name: secret18
        """,
    )
    archive = tmp_path / "secret14.tar.gz"
    assert run("--root", root, "--record", archive).exit_code == 0
    with tarfile.open(archive) as tar:
        for member in tar:
            assert (member.uid, member.mtime, member.uname) == (0, 0, "")
            file = tar.extractfile(member)
            assert file
            assert b"secret" not in member.name.encode() + file.read()
        cpuinfo = tar.extractfile("proc/cpuinfo")
        assert cpuinfo
        words = cpuinfo.read().decode().splitlines()[1:]
        assert words == ["flags\t: monitor tdx_guest", "bugs\t: apic_c1e"]
        cmdline = tar.extractfile("proc/cmdline")
        assert cmdline
        assert cmdline.read() == b'idle="halt" module_blacklist="cpuidle_lightsleep"\n'
    # gzip must not keep the name either.
    assert b"secret" not in archive.read_bytes()


def test_a_recording_that_cannot_be_written_destroys_none(tmp_path: Path) -> None:
    archive = tmp_path / "new" / "keep.tar.gz"
    command = [sys.executable, "-m", "lightsleep", "scan", "--record", str(archive)]
    subprocess.run(command, check=True, capture_output=True)
    kept = archive.read_bytes()

    def no_space() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    result = subprocess.run(command, capture_output=True, text=True, preexec_fn=no_space)
    assert result.returncode == 1
    assert f"cannot write {archive}: File too large" in " ".join(result.stderr.split())
    assert archive.read_bytes() == kept
    assert list(archive.parent.iterdir()) == [archive]


def test_recording_of_this_machine_names_no_host(tmp_path: Path) -> None:
    archive = tmp_path / "this.tar.gz"
    assert run("--record", archive).exit_code == 0
    host = os.uname().nodename
    with tarfile.open(archive) as tar:
        contents = [file.read() for member in tar if (file := tar.extractfile(member))]
    assert contents
    assert len(host) < 4 or not any(host.encode() in content for content in contents)


@pytest.mark.parametrize("name", ["lpar-7", "zebra"])
def test_of_a_partitions_name_not_a_letter_is_recorded(name: str, tmp_path: Path) -> None:
    root = unfold("powernv-power9", tmp_path / "machine")
    plant(root, f"proc/device-tree/ibm,partition-name: {name}")
    archive = tmp_path / "x.tar.gz"
    assert run("--root", root, "--record", archive).exit_code == 0
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        tar.extractall(tmp_path / "copy")
    found = tmp_path / "copy/proc/device-tree/ibm,partition-name"
    assert found.read_text() == "recorded\n"
    assert collect(tmp_path / "copy")[0].hypervisor == "PowerVM"
