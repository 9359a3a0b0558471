# SPDX-License-Identifier: GPL-2.0-only
"""What scan shows."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from paths import ROOT
from scan_trees import NAMES, plant, unfold
from scans import CPU, check_everything, run, show

from lightsleep.scan import explain
from lightsleep.scan.cli import scan
from lightsleep.scan.collect import (
    INTERRUPTS,
    PARTITIONS,
    POLL_SOURCES,
    collect,
    cpu_model,
    idle_options,
    queue_rows,
)
from lightsleep.scan.document import document
from lightsleep.scan.lint import lint
from lightsleep.scan.machine import read as read_machine
from lightsleep.scan.tree import Tree, printable

MODALIAS = "sys/class/dmi/id/modalias"
TDX = "proc/cpuinfo: flags : hypervisor tdx_guest"


@pytest.mark.parametrize("machine", NAMES)
def test_json_follows_the_schema(machine: str, tmp_path: Path) -> None:
    printed = check_everything(unfold(machine, tmp_path))
    assert list(printed)[:2] == ["schema", "version"]
    assert printed["problems"] == {}


def test_this_machine() -> None:
    check_everything(Path("/"))


def test_states_of_power9(tmp_path: Path) -> None:
    result, _ = collect(unfold("powernv-power9", tmp_path))
    states = [(s.name, s.latency_us, s.residency_us) for s in result.cpus[7].states]
    assert states == [("snooze", 0, 0), ("stop0_lite", 1, 10), ("stop0", 2, 20), ("stop1", 5, 50)]
    assert result.cpuidle.driver == "powernv_idle"
    assert result.hypervisor is None
    assert result.cpus[7].siblings == [4, 5, 6, 7]


def test_alike_cpus_share_a_table(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    assert show(tmp_path).count("C10") == 1
    plant(tmp_path, f"{CPU}/cpu{{2,5}}/cpuidle/state5/disable: 1")
    text = show(tmp_path)
    assert "cpu 0-1,3-4,6-7" in text
    assert "cpu 2,5" in text
    assert text.count("C10 (disabled)") == 1


def test_a_kernel_that_promotes_tells_how_often(tmp_path: Path) -> None:
    unfold("powernv-power9", tmp_path)
    assert "promoted" not in run("--root", tmp_path, width=200).stdout
    lite = f"{CPU}/cpu{{0-7}}/cpuidle/state1"
    plant(tmp_path, f"{lite}/promoted: 3")
    text = run("--root", tmp_path, width=200).stdout
    (row,) = [line for line in text.splitlines() if line.strip().startswith("stop0_lite")]
    cpus = collect(tmp_path)[0].cpus
    assert f" {3 * len(cpus)} " in row
    assert [s.promoted for s in cpus[0].states[:2]] == [None, 3]


def test_documentation_shows_a_real_run(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "scan.md").read_text()
    example = show(unfold("kvm-haltpoll-zero", tmp_path))
    for line in example.splitlines():
        assert f"    {line}".rstrip() in page.splitlines()


def test_share_of_time_since_boot(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    # C10: 9000 of the 36,000 s since boot, on every CPU.
    (c10,) = (line for line in show(tmp_path).splitlines() if line.startswith("C10"))
    assert "25.0%" in c10


def test_suspend_is_no_time_of_states(tmp_path: Path) -> None:
    """The uptime counts it. The counters of states and /proc/stat do not."""
    unfold("intel-laptop", tmp_path)
    plant(tmp_path, f"{CPU}/cpu{{3-7}}/cpuidle/state5/disable: 1")  # two groups of CPUs
    ticks = 12_000 * os.sysconf("SC_CLK_TCK")
    rows = ["cpu 1 0 0 0 0 0 0 0 0 0", *(f"cpu{n} 0 0 0 {ticks} 0 0 0 0 7 7" for n in range(8))]
    plant(tmp_path, "\n".join(f"proc/stat: {row}" for row in rows))
    # 9000 of the 12,000 s in which it was not suspended, on every CPU.
    shares = [line for line in show(tmp_path).splitlines() if line.startswith("C10")]
    assert ["75.0%" in line for line in shares] == [True, True]
    assert [cpu["counted_s"] for cpu in check_everything(tmp_path)["cpus"]] == [12_000] * 8
    assert [cpu.counted_s for cpu in collect(tmp_path, [1, 2])[0].cpus] == [12_000] * 2


def test_a_cpu_that_was_offline_for_long_leaves_the_shares_of_others(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    # CPU 0 is in a group of its own; the others came online late, and C10 was all they did.
    plant(tmp_path, f"{CPU}/cpu0/power/pm_qos_resume_latency_us: 500")
    plant(tmp_path, f"{CPU}/cpu{{1-7}}/cpuidle/state5/time: 1000000000")
    hz = os.sysconf("SC_CLK_TCK")
    rows = [f"cpu{n} 0 0 0 {hz * (12_000 if n == 0 else 1_000)} 0 0 0 0 0 0" for n in range(8)]
    plant(tmp_path, "\n".join(f"proc/stat: {row}" for row in rows))
    shares = [line for line in show(tmp_path).splitlines() if line.startswith("C10")]
    assert [re.findall(r"[\d.]+%", line) for line in shares] == [["75.0%"], ["100.0%"]]


@pytest.mark.parametrize(
    ("time_us", "share"),
    [(0, "0.0%"), (36_000_000_000, "100.0%"), (36_300_000_000, "100.0%"), (2**64 - 1, "-")],
)
def test_no_share_of_a_state_is_above_100_percent(time_us: int, share: str, tmp_path: Path) -> None:
    """The counters are not read at the same moment. One that is far above is damaged."""
    unfold("intel-laptop", tmp_path)
    plant(tmp_path, f"{CPU}/cpu{{0-7}}/cpuidle/state5/time: {time_us}")
    (c10,) = (line for line in show(tmp_path).splitlines() if line.startswith("C10"))
    assert f" {share} " in c10


def test_hits_that_are_ahead_of_polls_are_no_more_than_all(tmp_path: Path) -> None:
    unfold("lightsleep-guest", tmp_path)
    plant(tmp_path, f"{CPU}/cpu{{0-3}}/lightsleep/polls: 1000")
    plant(tmp_path, f"{CPU}/cpu{{0-3}}/lightsleep/hits: 1002")
    assert "4,000 polls, 100.0% saw a wakeup" in " ".join(show(tmp_path).split())


@pytest.mark.parametrize(
    "row", ["cpu3 1 2", "cpu3 0 0 0 x 0 0 0 0", "cpu3 0 0 0 \u00b2 0 0 0 0", ""]
)
def test_without_the_time_of_a_cpu_shares_are_of_the_uptime(row: str, tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    rows = [f"cpu{n} 0 0 0 9 0 0 0 0" for n in range(8)]
    rows[3] = row
    plant(tmp_path, "\n".join(f"proc/stat: {row}" for row in rows))
    (c10,) = (line for line in show(tmp_path).splitlines() if line.startswith("C10"))
    assert "25.0%" in c10
    assert check_everything(tmp_path)["cpus"][3]["counted_s"] is None


def test_usual_machine_fits_one_screen(tmp_path: Path) -> None:
    for machine in ("intel-laptop", "powernv-power9", "kvm-haltpoll", "arm64-psci"):
        assert len(show(unfold(machine, tmp_path / machine)).splitlines()) <= 24


def test_cpus_option_limits_the_scan(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    printed = json.loads(show(tmp_path, "--json", "-c", "5,1-2"))
    assert [cpu["cpu"] for cpu in printed["cpus"]] == [1, 2, 5]


def test_offline_cpus(tmp_path: Path) -> None:
    unfold("powernv-power9", tmp_path)
    plant(tmp_path, f"{CPU}/online: 0-5\n{CPU}/offline: 6-63\n{CPU}/present: 0-7")
    assert "0-5 online, 6-7 offline" in show(tmp_path)


@pytest.mark.parametrize(
    ("at_boot", "partitions", "isolated"),
    [("", "2-3", "2-3"), ("2-3", "", "2-3"), ("2", "2-3,5", "2-3,5"), ("7", "x", "7")],
)
def test_isolated_cpus(at_boot: str, partitions: str, isolated: str, tmp_path: Path) -> None:
    """Linux before 7.0 lists those of cpuset partitions apart from those of the boot."""
    unfold("powernv-power9", tmp_path)
    plant(tmp_path, f"{CPU}/isolated: {at_boot}\n{PARTITIONS}: {partitions}")
    assert f"{isolated} isolated" in show(tmp_path)


@pytest.mark.parametrize(
    ("machine", "change", "hypervisor"),
    [
        ("intel-laptop", "", None),
        ("kvm-haltpoll", "", "KVM"),
        ("arm64-psci", f"{CPU}/cpuidle/available_governors: menu haltpoll", None),
        ("no-cpuidle", "", "QEMU"),
        ("no-cpuidle", "sys/class/dmi/id/sys_vendor: Acme", "unknown"),
        ("no-cpuidle", "sys/hypervisor/type: xen", "Xen"),
        ("powernv-power9", "proc/cpuinfo: machine : PowerNV (emulated by qemu)", "QEMU"),
        ("powernv-power9", "proc/device-tree/ibm,partition-name: lpar-7", "PowerVM"),
        ("arm64-psci", f"{MODALIAS}: dmi:bvnAmazonEC2:svnAmazonEC2:pnm6g.large:pvr:", "KVM"),
        ("arm64-psci", f"{MODALIAS}: dmi:bvnAmazonEC2:svnAmazonEC2:pnc7g.metal:pvr:", None),
        ("arm64-psci", f"{MODALIAS}: dmi:bvnAmazonEC2:svnAmazonEC2:pnc8g.metal-24xl:pvr:", None),
        (
            "arm64-psci",
            f"{MODALIAS}: dmi:svnMicrosoftCorporation:pnVirtualMachine:pvrHyper-V:",
            "Hyper-V",
        ),
        ("arm64-psci", f"{MODALIAS}: dmi:svnMicrosoftCorporation:pnSurfacePro:pvr:", None),
        *(
            ("arm64-psci", f"sys/class/dmi/id/{text}", hypervisor)
            for text, hypervisor in {
                "product_name: KVM": "KVM",
                "product_name: OpenStack Nova": "KVM",
                "sys_vendor: KubeVirt": "KVM",
                "product_name: KVM Switch 8": None,
            }.items()
        ),
        (
            "arm64-psci",
            "sys/class/dmi/id/product_name: Apple Virtualization Generic Platform",
            "Apple Virtualization",
        ),
    ],
)
def test_hypervisor(machine: str, change: str, hypervisor: str | None, tmp_path: Path) -> None:
    unfold(machine, tmp_path)
    plant(tmp_path, change)
    assert collect(tmp_path)[0].hypervisor == hypervisor


@pytest.mark.parametrize(
    ("change", "idle", "why"),
    [
        ("", "HLT", "the hypervisor (QEMU) offers this guest no idle states"),
        ("proc/cpuinfo: flags : monitor", "MWAIT C1", "offers this guest no idle states"),
        ("proc/cpuinfo: masked", "HLT or MWAIT C1", "offers this guest no idle states"),
        ("proc/cpuinfo: masked\nproc/cmdline: idle=halt", "HLT", "idle=halt"),
        ("proc/cmdline: idle=poll", "spin", "idle=poll"),
        ("proc/cmdline: idle=nomwait", "HLT", "idle=nomwait keeps intel_idle and haltpoll away"),
        (
            f"proc/cmdline: idle=nomwait\n{CPU}/cpuidle/available_governors: menu haltpoll",
            "HLT",
            "idle=nomwait keeps intel_idle and haltpoll away",
        ),
        ("proc/cmdline: cpuidle.off=1", "HLT", "cpuidle.off"),
        (f"{CPU}/cpuidle/available_governors: menu haltpoll", "HLT", "force=1"),
        ("proc/sys/kernel/arch: aarch64", "WFI", "offers this guest no idle states"),
        ("proc/sys/kernel/arch: aarch64\nproc/cmdline: nohlt", "spin", "nohlt is on the command"),
        (
            f"proc/sys/kernel/arch: aarch64\n{CPU}/cpuidle/available_governors: menu haltpoll",
            "WFI",
            "modprobe cpuidle_haltpoll force=1",
        ),
        (
            f"proc/sys/kernel/arch: aarch64\n{CPU}/cpuidle/available_governors: menu haltpoll\n"
            "sys/module/cpuidle_haltpoll/parameters/force: N",
            "WFI",
            "built in and unforced",
        ),
        (
            f"proc/sys/kernel/arch: aarch64\n{CPU}/cpuidle/available_governors: menu haltpoll\n"
            "sys/module/cpuidle_haltpoll/parameters/force: Y",
            "WFI",
            "with force=1, but not bound",
        ),
        (
            "proc/sys/kernel/arch: ppc64le",
            "the platform's power_save",
            "offers this guest no idle states",
        ),
        ("proc/sys/kernel/arch: ppc64le\nproc/cmdline: powersave=off", "spin", "powersave=off"),
    ],
)
def test_what_happens_without_a_driver(change: str, idle: str, why: str, tmp_path: Path) -> None:
    unfold("no-cpuidle", tmp_path)
    plant(tmp_path, change)
    result, _ = collect(tmp_path)
    assert result.cpuidle.driver is None
    assert explain.default_idle(result).startswith(idle)
    assert why in (explain.why_no_driver(result) or "")


def test_arm64_says_that_polling_does_not_save_the_ipi(tmp_path: Path) -> None:
    assert "needs an IPI, even one that polls" in show(unfold("arm64-psci", tmp_path))


def test_arm64_kernels_with_haltpoll_save_the_ipi(tmp_path: Path) -> None:
    unfold("arm64-psci", tmp_path)
    plant(tmp_path, f"{CPU}/cpuidle/available_governors: menu haltpoll")
    assert "a CPU that polls needs no IPI" in show(tmp_path)


@pytest.mark.parametrize(
    ("flag", "wakeup"), [("Y", "a CPU that polls needs no IPI"), ("N", "even one that polls")]
)
def test_arm64_kernels_that_poll_in_the_idle_loop_tell(
    tmp_path: Path, flag: str, wakeup: str
) -> None:
    unfold("arm64-psci", tmp_path)
    plant(tmp_path, f"sys/module/idle_poll/parameters/polling_flag: {flag}")
    assert wakeup in show(tmp_path)


def test_lightsleep_statistics(tmp_path: Path) -> None:
    text = show(unfold("lightsleep-guest", tmp_path))
    assert "mode adaptive, poll_limit_us 200, a halt costs 52,000 ns" in text
    assert "400,000 polls, 70.0% saw a wakeup" in text
    # 1 s wasted in 900 s of idle on each CPU.
    assert "1.111 ms polled in vain per second of idle" in text
    assert "50,000 ns on cpu 0-2; 0 ns on cpu 3" in text
    for cpu in range(4):
        shutil.rmtree(tmp_path / f"{CPU}/cpu{cpu}/lightsleep")
    assert "polls," not in show(tmp_path)


QUEUES = """
proc/interrupts:            CPU0       CPU1
proc/interrupts:  26:          0          0  PCI-MSIX-0000:00:01.0   0-edge      virtio0-config
proc/interrupts:  27:       4000        283  PCI-MSIX-0000:00:01.0   1-edge      virtio0-req.0
proc/interrupts:  28:          0         17  PCI-MSIX-0000:00:01.0   2-edge      virtio0-req.1
proc/interrupts:  29:          9          0  PCI-MSIX-0000:00:02.0   1-edge      virtio1-input.0
proc/interrupts:  30:          9          0  PCI-MSIX-0000:00:03.0   1-edge      enp0s3-rx-0
proc/interrupts: LOC:      10000      10000   Local timer interrupts
proc/irq/27/effective_affinity_list: 0
proc/irq/28/effective_affinity_list: 1
"""


HEAD = "cpu name state polls hits misses peeks peek_ns overruns handled handle_ns holds expired"


SOURCES = f"""
sys/kernel/debug/poll_source: {HEAD}
sys/kernel/debug/poll_source: 0 virtio0-req.0 on 5000 4000 1000 200000 40000000 3 4000 88000000 \
3990 12
sys/kernel/debug/poll_source: 1 virtio0-req.1 off 70 1 69 70 7000000 70 1 30000 0 0
"""


def test_virtio_queues(tmp_path: Path) -> None:
    root = plant(unfold("lightsleep-tcg", tmp_path), QUEUES + SOURCES)
    first, second, third = check_everything(root)["queues"]
    assert first == {
        "name": "virtio0-req.0",
        "irq": 27,
        "cpus": [0],
        "interrupts": 4283,
        "source": {
            "enabled": True,
            "polls": 5000,
            "hits": 4000,
            "peeks": 200000,
            "peek_ns": 40000000,
            "overruns": 3,
            "handled": 4000,
            "handle_ns": 88000000,
            "holds": 3990,
            "expired": 12,
        },
    }
    assert second["source"]["enabled"] is False
    assert (third["name"], third["cpus"], third["source"]) == ("virtio1-input.0", [], None)
    out = show(root)
    assert re.search("virtio0-req.0 .* 4,283 +polled", out)
    assert re.search("virtio0-req.1 .* 17 +too slow", out)
    assert re.search("virtio1-input.0 .* 9 +interrupts", out)
    assert re.search("virtio0-req.0 +5,000 +4,000 +3,990 +12 +200 +22,000", out)
    assert re.search("virtio0-req.1 +70 +1 +0 +0 +100,000 +30,000", out)
    assert out.count("virtio1-input.0") == 1


def test_whether_a_queue_is_polled_is_unknown_where_the_sources_cannot_be_read(
    tmp_path: Path,
) -> None:
    root = plant(unfold("lightsleep-tcg", tmp_path), QUEUES)
    assert re.search("virtio0-req.0 .* 4,283 +interrupts", show(root))
    (root / POLL_SOURCES).mkdir(parents=True)  # like a folder that only root may look into
    out = show(root)
    assert re.search("virtio0-req.0 .* 4,283 +-", out)
    assert "interrupts\n" not in out.partition("while idle\n")[2]


QUEUE_ROW = re.compile(
    r"(?m)^\s*(?P<irq>[0-9]{1,6}):(?P<counts>(?:\s+[0-9]{1,19})+)\s.*"
    r"\s(?P<name>virtio[0-9]{1,6}-(?!config$)\S{1,64})$"
)
"""What a row is, said in another way; it takes far too long for a large machine."""

WORDS = st.sampled_from(["7", "9" * 19, "9" * 20, "²", "PCI-MSI", "1-edge", "config", "x:", "\x1b"])
LABELS = st.sampled_from(["27", " 27", "1234567", "LOC", "", "²", "27 ", "x27"])
QUEUE_NAMES = st.sampled_from(
    [
        *("virtio0-req.0", "virtio0-config", "virtio0-configs", "virtio-x", "virtio1234567-x"),
        *("virtio0-", "virtio1-\x1b", f"virtio0-{'n' * 64}", f"virtio0-{'n' * 65}", "virtio0-a, b"),
    ]
)
ROWS = st.tuples(LABELS, st.lists(WORDS, max_size=4), QUEUE_NAMES).map(
    lambda row: f"{row[0]}: {' '.join(row[1])}  {row[2]}"
)


@given(st.lists(ROWS, max_size=4))
def test_rows_of_queues(rows: list[str]) -> None:
    content = "\n".join(["x CPU0 CPU1", *rows, "x"])
    shown = content.replace("\x1b", "�")
    assert [(x.text, x.irq, x.interrupts, x.name) for x in queue_rows(content.encode())] == [
        (x[0], x["irq"], sum(map(int, x["counts"].split())), x["name"])
        for x in QUEUE_ROW.finditer(shown)
    ]


def test_a_large_machine_is_read_at_little_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2000 rows of 1024 CPUs, two are of queues: only these are taken apart."""
    counts = f"{'0000000001 ' * 1024} PCI-MSIX 1-edge "
    rows = [f"{irq}: {counts} nvme0q{irq}" for irq in range(1998)]
    rows[1000:1000] = [f"{irq}: {counts} virtio0-req.{irq}" for irq in (5000, 5001)]
    root = unfold("no-cpuidle", tmp_path)
    (root / INTERRUPTS).write_text("\n".join(rows))
    looked_at, texts = [], []
    text_of = Tree.text

    def noted(text: str) -> str:
        looked_at.append(text)
        return printable(text)

    def noted_path(tree: Tree, path: str, *words: int) -> str | None:
        texts.append(path)
        return text_of(tree, path, *words)

    monkeypatch.setattr("lightsleep.scan.collect.printable", noted)
    monkeypatch.setattr(Tree, "text", noted_path)
    found = collect(root)[0].queues
    assert [(x.name, x.interrupts) for x in found] == [
        ("virtio0-req.5000", 1024),
        ("virtio0-req.5001", 1024),
    ]
    assert len(looked_at) == 2
    assert INTERRUPTS not in texts


def busy(root: Path) -> Path:
    """A machine of large numbers."""
    plant(unfold("lightsleep-tcg", root), QUEUES.replace("4000 ", "1375000000 ") + SOURCES)
    return plant(root, f"{CPU}/cpu{{0-1}}/cpuidle/state0/usage: 3022470000")


@pytest.mark.parametrize("width", [30, 40, 80])
def test_no_number_and_no_name_is_ever_cut(width: int, tmp_path: Path) -> None:
    result = run("--root", busy(tmp_path), "-v", width=width)
    for whole in ("virtio0-req.0", "1,375,000,283", "6,044,940,000", "3,022,470,000", "22,000"):
        assert whole in result.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in result.stdout


def test_80_columns_are_enough_for_large_numbers(tmp_path: Path) -> None:
    out = run("--root", busy(tmp_path), width=80).stdout
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("columns", [None, "", "0"])
def test_lines_of_a_file_are_as_long_as_what_they_say(columns: str | None, tmp_path: Path) -> None:
    unfold("kvm-haltpoll-zero", tmp_path)
    out = CliRunner().invoke(scan, ["--root", str(tmp_path)], env={"COLUMNS": columns}).stdout
    (finding,) = lint(collect(tmp_path)[0])
    assert len(finding.why) > 100
    assert f"    {finding.why}\n" in out


def test_poll_sources_of_another_shape_are_named(tmp_path: Path) -> None:
    root = plant(
        unfold("lightsleep-tcg", tmp_path),
        f"{QUEUES}sys/kernel/debug/poll_source: {HEAD}\n"
        "sys/kernel/debug/poll_source: 0 virtio0-req.0 on many\n",
    )
    scan = check_everything(root)
    assert scan["queues"][0]["source"] is None
    assert "not a poll source" in scan["problems"]["sys/kernel/debug/poll_source"]


def test_haltpoll_shows_only_where_it_can_be_used(tmp_path: Path) -> None:
    # The parameters are there on every x86 kernel; the governor only in a KVM guest.
    assert "guest_halt_poll_ns" not in show(unfold("lightsleep-tcg", tmp_path / "tcg"))
    assert "guest_halt_poll_ns" in show(unfold("kvm-haltpoll", tmp_path / "kvm"))


@pytest.mark.parametrize(
    ("machine", "change", "said"),
    [
        ("no-cpuidle", "", "HLT: exits to the hypervisor unless"),
        ("no-cpuidle", "sys/hypervisor/type: xen", "by a hypercall instead"),
        ("no-cpuidle", "proc/cmdline: idle=poll", "spin (idle=poll)"),
        ("no-cpuidle", "proc/sys/kernel/arch: riscv64", "unknown"),
        ("no-cpuidle", f"{CPU}/cpuidle/current_driver: odd_idle", "unknown"),
        ("lightsleep-guest", "", "HLT: exits"),
        *(
            (machine, f"{TDX}{change}", "a hypercall (TDX): each one exits to the hypervisor")
            for machine in ("lightsleep-guest", "no-cpuidle")
            for change in ("", "\nproc/cmdline: idle=halt")
        ),
        ("lightsleep-guest", "proc/cpuinfo: flags : monitor hypervisor", "MWAIT C1, or HLT"),
        ("kvm-haltpoll", "", "HLT"),
        ("intel-laptop", "", "MWAIT"),
        ("no-cpuidle", f"{CPU}/cpuidle/current_driver: intel_idle", "HLT: exits"),
        ("arm64-psci", "", "WFI"),
        (
            "arm64-psci",
            f"{CPU}/cpuidle/current_driver: acpi_idle",
            "WFI, or a call of the firmware",
        ),
        ("intel-laptop", f"{CPU}/cpuidle/current_driver: acpi_idle", "MWAIT, HLT or a read of an"),
        ("powernv-power9", "", "snooze"),
        ("powernv-power9", f"{CPU}/cpuidle/current_driver: pseries_idle", "H_CEDE"),
    ],
)
def test_how_a_cpu_halts(machine: str, change: str, said: str, tmp_path: Path) -> None:
    plant(unfold(machine, tmp_path), change)
    result, _ = collect(tmp_path)
    assert said in explain.halt(result)
    assert document(result, [])["halt"] == explain.halt(result)


def test_nothing_is_said_of_exits_where_several_instructions_are_possible(tmp_path: Path) -> None:
    plant(unfold("no-cpuidle", tmp_path), f"{CPU}/cpuidle/current_driver: acpi_idle")
    assert "exit" not in explain.halt(collect(tmp_path)[0])


def test_stolen_time_and_energy_are_where_they_are_counted(tmp_path: Path) -> None:
    unfold("no-cpuidle", tmp_path)
    assert (collect(tmp_path)[0].stolen_s, collect(tmp_path)[0].energy) == (None, [])
    rows = ("cpu 1 2 3 4 5 6 7 800 0 0", "cpu0 1 2 3 4 5 6 7 600 0 0")
    plant(tmp_path, "\n".join(f"proc/stat: {row}" for row in rows))
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:1": "psys"}
    for name, said in {**zones, "intel-rapl-mmio:0": "package-0", "dtpm": "x"}.items():
        plant(tmp_path, f"sys/class/powercap/{name}/name: {said}")
    result, _ = collect(tmp_path)
    assert result.stolen_s == pytest.approx(800 / os.sysconf("SC_CLK_TCK"))
    assert result.energy == ["intel-rapl:0"]
    assert collect(tmp_path, [0])[0].stolen_s == pytest.approx(600 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize(("stolen", "shown"), [(0, False), (800, True)])
def test_stolen_time_tells_of_a_guest_whose_hypervisor_is_not_seen(
    stolen: int, shown: bool, tmp_path: Path
) -> None:
    root = plant(unfold("arm64-psci", tmp_path), f"proc/stat: cpu 1 2 3 4 5 6 7 {stolen} 0 0")
    text = show(root)
    assert "no hypervisor seen" in text
    assert ("\nstolen " in text) == shown


def test_the_cpu_model_is_found_whatever_it_is_called() -> None:
    assert cpu_model("processor\t: 0\nmodel\t: 6\nmodel name\t: QEMU TCG\n") == "QEMU TCG"
    assert cpu_model("processor\t: 0\ncpu\t\t: POWER9\n") == "POWER9"
    assert cpu_model("processor\t: 0\nCPU part\t: 0xd0c\n") == "CPU part 0xd0c"
    assert cpu_model("model name\t: \ncpu\t: POWER9\n") == "POWER9"
    assert cpu_model("") is None


@pytest.mark.parametrize(
    ("name", "polls"), [("POLL", True), ("poll", True), ("snooze", True), ("POLLUX", False)]
)
def test_states_that_poll_are_known_by_name(name: str, polls: bool, tmp_path: Path) -> None:
    plant(unfold("intel-laptop", tmp_path), f"{CPU}/cpu0/cpuidle/state0/name: {name}")
    assert collect(tmp_path)[0].cpus[0].states[0].polls is polls
    assert read_machine(tmp_path).cpus[0].states[0].polls is polls


def test_idle_options() -> None:
    line = 'root=UUID=1 idle=halt nohz_full=1-3 cpuidle-haltpoll.force=1 x="a b" idle=poll nohlt'
    assert idle_options(line) == {
        "idle": "poll",
        "nohz_full": "1-3",
        "cpuidle_haltpoll.force": "1",
        "nohlt": None,
    }
    assert idle_options("quiet -- idle=poll") == {}
    assert idle_options('note="see idle=poll"') == {}


def test_needs_only_click_and_rich() -> None:
    program = (
        "import sys; before = set(sys.modules); import lightsleep.scan.cli as cli\n"
        "cli.scan(['-v'], standalone_mode=False)\n"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*(new - sys.stdlib_module_names), file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    # rich itself brings pygments and, for Markdown, markdown_it and mdurl.
    allowed = {"lightsleep", "click", "rich", "pygments", "markdown_it", "mdurl"}
    assert set(result.stderr.split()) <= allowed
