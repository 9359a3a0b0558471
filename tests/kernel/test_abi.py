# SPDX-License-Identifier: GPL-2.0-only
"""Documentation/ABI names exactly the files that the kernel part makes."""

from __future__ import annotations

import re
from pathlib import Path

from lightsleep.sources import KERNEL

ABI = KERNEL / "Documentation/ABI/testing"
IDLE_POLL = KERNEL / "kernel/sched/idle_poll_sysfs.c"
PROMOTION = max(KERNEL.glob("patches/*/promotion/cpuidle-promote.patch"))

CPU = "/sys/devices/system/cpu/cpuX"
DEBUGFS = "/sys/kernel/debug"

PARAMETER = re.compile(r"^module_param(?:_cb|_named)?\((\w+),", re.MULTILINE)
DEBUGFS_FOLDER = re.compile(r'debugfs_create_dir\("?([\w>-]+)"?,')
OPS = re.compile(r'struct idle_cost_ops \w+ = \{\n\t\.name = "(\w+)"')
DEBUGFS_FILE = re.compile(r'debugfs_create_file\("(\w+)", \d+, (\w+)')
STATISTIC = re.compile(r"^STATISTIC\((\w+),", re.MULTILINE)
DEVICE_FILE = re.compile(r"^static DEVICE_ATTR_R[WO]\((\w+)\);", re.MULTILINE)
STATE_FILE = re.compile(r"^\+(?:\t__ATTR|define_one_state_r[wo])\((\w+),", re.MULTILINE)


def module_of() -> dict[str, str]:
    """Return the module that each source file belongs to, by Kbuild."""
    kbuild = (KERNEL / "Kbuild").read_text().replace("\\\n", " ")
    lines = re.findall(r"^(\w+)-\S*(?: \S+\))? [:+]= (.*)$", kbuild, re.MULTILINE)
    return {
        f"{Path(name).stem}.c": module
        for module, names in lines
        if module != "obj"
        for name in names.split()
    }


def parameters() -> set[str]:
    modules = module_of() | {"promote.c": "cpuidle", IDLE_POLL.name: "idle_poll"}
    files = [(file, modules.get(file.name)) for file in (*KERNEL.glob("drivers/*/*.c"), IDLE_POLL)]
    # The module has them on stock kernels, the kernel in the series.
    files += [(file, "poll_source") for file in KERNEL.glob("drivers/cpuidle/poll_source*.c")]
    return {
        f"/sys/module/{module}/parameters/{name}"
        for file, module in files
        for name in PARAMETER.findall(file.read_text())
    }


def debugfs_files() -> set[str]:
    texts = [file.read_text() for file in (*KERNEL.glob("drivers/*/*.c"), IDLE_POLL)]
    # The mechanism that measures costs names its folder after whoever uses it.
    named = {"ops->name": [name for text in texts for name in OPS.findall(text)]}
    assert named["ops->name"]
    found = set()
    for text in texts:
        folders = [x for name in DEBUGFS_FOLDER.findall(text) for x in named.get(name, [name])]
        for name, parent in DEBUGFS_FILE.findall(text):
            if parent == "NULL":
                found.add(f"{DEBUGFS}/{name}")
            else:
                found |= {f"{DEBUGFS}/{folder}/{name}" for folder in folders}
    return found


def device_files() -> set[str]:
    """Return what belongs to devices: statistics of CPUs, states of promotion, virtio."""
    sysfs = (KERNEL / "drivers/cpuidle/lightsleep_sysfs.c").read_text()
    statistics = STATISTIC.findall(sysfs) + DEVICE_FILE.findall(sysfs)
    polls = STATISTIC.findall(IDLE_POLL.read_text())
    states = STATE_FILE.findall(PROMOTION.read_text())
    virtio = DEVICE_FILE.findall((KERNEL / "drivers/virtio/virtio_poll_core.c").read_text())
    assert statistics
    assert polls
    assert states
    assert virtio
    return (
        {f"{CPU}/lightsleep/{name}" for name in statistics}
        | {f"{CPU}/idle_poll/{name}" for name in polls}
        | {f"{CPU}/cpuidle/stateN/{name}" for name in states}
        | {f"/sys/bus/virtio/devices/virtioN/{name}" for name in virtio}
    )


def documented() -> list[str]:
    return [
        path
        for file in ABI.iterdir()
        for path in re.findall(r"^What:\s+(\S+)$", file.read_text(), re.MULTILINE)
        if not path.endswith("/")
    ]


def test_every_file_is_documented_once_and_no_other_is() -> None:
    named = documented()
    assert len(named) == len(set(named))
    assert set(named) == parameters() | debugfs_files() | device_files()


def test_every_entry_says_when_to_whom_and_what() -> None:
    for file in ABI.iterdir():
        for entry in file.read_text().split("\n\nWhat:"):
            for tag in ("Date:", "Contact:", "Description:"):
                assert entry.count(f"\n{tag}") == 1, (file.name, entry)


def test_the_admin_guide_names_each_file_of_the_driver() -> None:
    guide = (KERNEL / "Documentation/admin-guide/pm/cpuidle-lightsleep.rst").read_text()
    for path in documented():
        if "/lightsleep/" in path or "/cpuidle_lightsleep/" in path:
            assert re.search(rf"\b{Path(path).name}``", guide), path


def test_all_that_keeps_cpus_from_being_measured_may_be_why_none_is() -> None:
    text = (ABI / "sysfs-module-cpuidle_lightsleep").read_text()
    reason = " ".join(text.split()).partition("EPERM if no CPU")[2].partition(". ")[0]
    for why in ("isolation", "disabled state", "latency limit", "idle device"):
        assert why in reason


def test_where_a_state_counts_promotions_is_told_as_the_code_decides_it() -> None:
    """The driver alone does not: some flags of a state forbid to leave it."""
    code = (KERNEL / "drivers/cpuidle/promote.h").read_text()
    forbid = {"POLLING": "polls", "TIMER_STOP": "timer", "COUPLED": "coupled"}
    flags = set(re.findall(r"CPUIDLE_FLAG_(\w+)", code))
    assert flags == {"PROMOTE", *forbid}
    abi = (ABI / "sysfs-devices-system-cpu-cpuidle-promote").read_text()
    texts = [abi.partition("stateN/promoted\n")[2]]
    for patch in KERNEL.glob("patches/*/promotion/cpuidle-promote.patch"):
        message, _, changes = patch.read_text().partition("\n---\n")
        texts += [message.partition("one counter:")[2].partition("\n\n")[0]]
        texts += [changes.partition("+``promoted``\n")[2].partition("\n+\n")[0]]
    assert len(texts) == 5
    for text in texts:
        assert [x for x in forbid.values() if x not in text] == []
