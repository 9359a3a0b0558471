# SPDX-License-Identifier: GPL-2.0-only
"""What scan shows, that its recordings are faithful and anonymous, and that nothing trips it."""

import io
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console
from scan_trees import NAMES, plant, unfold

from lightsleep.measure.machine import read as read_machine
from lightsleep.scan import explain, requests
from lightsleep.scan.cli import scan
from lightsleep.scan.collect import collect, cpu_model, idle_options
from lightsleep.scan.document import document
from lightsleep.scan.lint import lint
from lightsleep.scan.model import LatencyRequest, Scan
from lightsleep.scan.render import render
from lightsleep.scan.tree import Tree

CPU = "sys/devices/system/cpu"
SCHEMA = json.loads(resources.files("lightsleep.scan").joinpath("scan.schema.json").read_text())


def run(*arguments: str | Path, width: int = 100) -> Result:
    return CliRunner().invoke(scan, [str(a) for a in arguments], env={"COLUMNS": str(width)})


def show(root: Path, *arguments: str) -> str:
    result = run("--root", root, *arguments)
    assert result.exception is None, result.output
    return result.stdout


def check_everything(root: Path) -> dict[str, Any]:
    """Run both outputs on a tree; return the JSON document, which the schema accepts."""
    show(root, "-v")
    printed: dict[str, Any] = json.loads(show(root, "--json"))
    jsonschema.validate(printed, SCHEMA)
    return printed


# Who asked for a latency limit.


def asked(root: Path) -> Path:
    """Have two of three processes hold the device open, one of them twice."""
    plant(root, "dev/cpu_dma_latency: 0\nproc/9/comm: bash\nproc/9/fdinfo/0: x")
    plant(root, "proc/812/comm: cyclictest\nproc/77/comm: tuned\x1b[2J")
    for process, fds in ((9, ()), (812, (3, 5)), (77, (4,))):
        (root / f"proc/{process}/fd").mkdir(parents=True)
        (root / f"proc/{process}/fd/0").symlink_to("/dev/null")
        (root / f"proc/{process}/fd/1").symlink_to("socket:[4711]")
        for fd in fds:
            (root / f"proc/{process}/fd/{fd}").symlink_to(root / "dev/cpu_dma_latency")
    return root


def test_who_holds_the_latency_device(tmp_path: Path) -> None:
    assert [*requests.holders(tmp_path)] == []
    assert [*requests.holders(asked(tmp_path))] == ["tuned�[2J (77)", "cyclictest (812)"]


def test_other_open_files_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """stat() of a file on a dead NFS hangs."""
    looked_at = set()
    real = Path.stat
    asked(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", lambda x: (looked_at.add(os.path.realpath(x)), real(x))[1])
        found = [*requests.holders(tmp_path)]
    assert len(found) == 2
    assert looked_at == {str(tmp_path.resolve() / requests.DEVICE)}


@pytest.mark.skipif(os.geteuid() != 0, reason="/proc shows all processes to root")
def test_the_node_of_another_folder_is_the_same_device(tmp_path: Path) -> None:
    """A container has a /dev of its own."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc").symlink_to("/proc")
    (tmp_path / "other").mkdir()
    null = Path("/dev/null").stat()
    for folder in ("dev", "other"):
        os.mknod(tmp_path / folder / "cpu_dma_latency", null.st_mode, null.st_rdev)
    with (tmp_path / "other/cpu_dma_latency").open():
        assert f"({os.getpid()})" in " ".join(requests.holders(tmp_path))


def test_a_request_is_shown_with_who_asked_and_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = asked(unfold("lightsleep-guest", tmp_path))
    clock = iter((10.0, 12.0))
    monkeypatch.setattr(requests.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(requests.time, "sleep", lambda _: None)
    first, _ = collect(root)
    plant(root, f"{CPU}/cpu{{0-3}}/cpuidle/state0/time: {300_000_000 + 1_500_000}")
    result = requests.with_request(first, lambda: collect(root)[0], root)
    assert result.latency_request == LatencyRequest(["tuned�[2J (77)", "cyclictest (812)"], 0.75)
    console = Console(record=True, width=200, file=io.StringIO())
    render(console, result, lint(result), False)
    text = console.export_text()
    assert "0 us (/dev/cpu_dma_latency), held open by tuned�[2J (77), cyclictest (812)" in text
    assert "CPUs poll 75% of the time now" in text
    assert "CPU 0-3: /dev/cpu_dma_latency 0 us (held open by tuned" in text
    jsonschema.validate(document(result, lint(result)), SCHEMA)


def test_without_a_limit_nobody_is_looked_for(tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    first, _ = collect(root)
    assert requests.with_request(first, lambda: pytest.fail("looked twice"), root) is first


# What it shows.


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


def test_a_kernel_that_promotes_tells_who_was_stuck(tmp_path: Path) -> None:
    unfold("powernv-power9", tmp_path)
    assert "stuck" not in run("--root", tmp_path, width=200).stdout
    lite = f"{CPU}/cpu{{0-7}}/cpuidle/state1"
    plant(tmp_path, f"{lite}/promote/stuck_us: 0\n{lite}/promote/promoted: 3")
    text = run("--root", tmp_path, width=200).stdout
    (row,) = [line for line in text.splitlines() if line.strip().startswith("stop0_lite")]
    assert "0.0%" in row
    cpus = collect(tmp_path)[0].cpus
    assert f" {3 * len(cpus)} " in row
    assert [s.promoted for s in cpus[0].states[:2]] == [None, 3]


def test_documentation_shows_a_real_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "scan.md").read_text()
    example = show(unfold("kvm-haltpoll-zero", tmp_path))
    for line in example.splitlines():
        assert f"    {line}".rstrip() in page.splitlines()


def test_share_of_time_since_boot(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    # C10: 9000 of the 36,000 s since boot, on every CPU.
    (c10,) = (line for line in show(tmp_path).splitlines() if line.startswith("C10"))
    assert "25.0%" in c10


def test_usual_machine_fits_one_screen(tmp_path: Path) -> None:
    for machine in ("intel-laptop", "powernv-power9", "kvm-haltpoll", "arm64-psci"):
        assert len(show(unfold(machine, tmp_path / machine)).splitlines()) <= 24


def test_cpus_option_limits_the_scan(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    printed = json.loads(show(tmp_path, "--json", "-c", "5,1-2"))
    assert [cpu["number"] for cpu in printed["cpus"]] == [1, 2, 5]


def test_offline_cpus(tmp_path: Path) -> None:
    unfold("powernv-power9", tmp_path)
    plant(tmp_path, f"{CPU}/online: 0-5\n{CPU}/offline: 6-63\n{CPU}/present: 0-7")
    assert "0-5 online, 6-7 offline" in show(tmp_path)


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
        ("proc/cmdline: cpuidle.off=1", "HLT", "cpuidle.off"),
        (f"{CPU}/cpuidle/available_governors: menu haltpoll", "HLT", "force=1"),
        ("proc/sys/kernel/arch: aarch64", "WFI", "offers this guest no idle states"),
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


def test_lines_of_a_file_are_as_long_as_what_they_say(tmp_path: Path) -> None:
    unfold("kvm-haltpoll-zero", tmp_path)
    out = CliRunner().invoke(scan, ["--root", str(tmp_path)], env={"COLUMNS": None}).stdout
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
        ("lightsleep-guest", "proc/cpuinfo: flags : monitor hypervisor", "MWAIT C1, or HLT"),
        ("kvm-haltpoll", "", "HLT"),
        ("intel-laptop", "", "MWAIT"),
        ("no-cpuidle", f"{CPU}/cpuidle/current_driver: intel_idle", "HLT: exits"),
        ("arm64-psci", "", "WFI"),
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
    plant(tmp_path, "proc/stat: cpu 1 2 3 4 5 6 7 800 0 0")
    for name in ("intel-rapl:0", "intel-rapl:0:0", "dtpm"):
        plant(tmp_path, f"sys/class/powercap/{name}/energy_uj: 7")
    result, _ = collect(tmp_path)
    assert result.stolen_s == pytest.approx(800 / os.sysconf("SC_CLK_TCK"))
    assert result.energy == ["intel-rapl:0"]


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


# Recordings.


def comparable(result: Scan) -> Scan:
    return replace(result, problems={}, kernel=replace(result.kernel, release=None))


@pytest.mark.parametrize("machine", NAMES)
def test_recording_scans_as_the_machine_did(machine: str, tmp_path: Path) -> None:
    root = unfold(machine, tmp_path / "machine")
    archive = tmp_path / "machine.tar.gz"
    assert run("--root", root, "--record", archive).exit_code == 0
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "copy", filter="data")
    assert comparable(collect(tmp_path / "copy")[0]) == comparable(collect(root)[0])


def test_recording_gives_nobody_away(tmp_path: Path) -> None:
    root = unfold("intel-laptop", tmp_path / "machine")
    plant(
        root,
        """
        proc/cmdline: root=UUID=secret1 ip=secret2 idle=halt -- secret3
        proc/sys/kernel/osrelease: 6.12.0-secret4
        proc/sys/kernel/hostname: secret5
        proc/cpuinfo: model name : Common CPU
        proc/cpuinfo: flags : fpu secret6 monitor
        proc/cpuinfo: Serial : secret7
        proc/interrupts: 27: 4 PCI-MSIX-0000:00:01.0 1-edge virtio0-req.0
        proc/interrupts: 30: 9 PCI-MSIX-0000:00:03.0 1-edge secret15-rx-0
        sys/class/dmi/id/sys_vendor: QEMU secret8
        sys/class/dmi/id/product_name: secret9
        sys/class/dmi/id/product_serial: secret10
        sys/class/block/md_secret11/queue/io_poll: 0
        sys/class/net/eth0/address: secret12
        etc/machine-id: secret13
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
        cmdline = tar.extractfile("proc/cmdline")
        assert cmdline
        assert cmdline.read() == b'idle="halt"\n'
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


# Damage.


def make_unreadable(path: Path) -> None:
    path.unlink()
    # A link to itself cannot be opened, not even by root.
    path.symlink_to(path.name)


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 64),
    "empty": lambda path: path.write_bytes(b""),
    "huge number": lambda path: path.write_text("9" * 5000),
    "number over 64 bits": lambda path: path.write_text(str(2**64)),
    "negative": lambda path: path.write_text("-1\n"),
    "escape": lambda path: path.write_text("\x1b]0;owned\x07[bold]x[/nope]\n"),
    "unreadable": make_unreadable,
    "missing": lambda path: path.unlink(),
    "folder": make_folder,
    "fifo": make_fifo,
}


@pytest.mark.parametrize("machine", ["intel-laptop", "lightsleep-guest", "kvm-haltpoll-zero"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_damaged(damage: str, machine: str, tmp_path: Path) -> None:
    unfold(machine, tmp_path)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        DAMAGE[damage](path)
    check_everything(tmp_path)
    assert "\x1b" not in show(tmp_path, "-v")


@pytest.mark.parametrize("content", ["-5", "5 us", "", str(2**64)])
def test_damage_is_named(content: str, tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    path = f"{CPU}/cpu3/cpuidle/state1/latency"
    plant(tmp_path, f"{path}: {content}")
    printed = check_everything(tmp_path)
    assert printed["problems"] == {path: f"not a number: {content!r}"}
    assert printed["cpus"][3]["states"][1]["latency_us"] is None
    assert "(-v names them)" in show(tmp_path)
    assert path in show(tmp_path, "-v")


@pytest.mark.parametrize("moment", range(0, 120, 7))
def test_cpu_that_goes_offline_while_it_is_read(
    moment: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfold("intel-laptop", tmp_path)
    plant(tmp_path, f"{CPU}/online: 3")
    read, reads = Tree._read, 0

    def read_and_unplug(tree: Tree, path: str) -> bytes | None:
        nonlocal reads
        if reads == moment:
            shutil.rmtree(tmp_path / CPU / "cpu3")
        reads += 1
        return read(tree, path)

    monkeypatch.setattr(Tree, "_read", read_and_unplug)
    result, _ = collect(tmp_path)
    jsonschema.validate(document(result, lint(result)), SCHEMA)


def test_masked_proc_falls_back_on_uname(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "_read", lambda tree, path: None)
    result, _ = collect()
    assert (result.kernel.release, result.kernel.arch) == (os.uname().release, os.uname().machine)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), machine=st.sampled_from(NAMES))
def test_random_bytes_in_random_files(data: st.DataObject, machine: str, tmp_path: Path) -> None:
    root = tmp_path / "fuzz"
    shutil.rmtree(root, ignore_errors=True)
    unfold(machine, root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    content = st.one_of(
        st.binary(max_size=64),
        st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
        st.sampled_from([b"0-3,", b"n/a", b"(null)", b"Y", b'idle="', b"POLL", b"haltpoll"]),
    )
    for file in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=12)):
        file.write_bytes(data.draw(content))
    check_everything(root)
    assert run("--root", root, "--record", tmp_path / "fuzz.tar.gz").exception is None


# The command.


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--root", "nowhere"], 1, "nowhere is not a folder"),
        (["-c", "3-x"], 2, "'3-x' is not a CPU"),
        (["-c", ""], 2, "names no CPU"),
        (["-c", "60000"], 2, "CPU 60000 is not online"),
        (["--record", "/proc/no/x.tar.gz"], 1, "cannot write /proc/no/x.tar.gz"),
    ],
)
def test_user_errors(
    arguments: list[str],
    status: int,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*arguments, width=200)
    assert result.exit_code == status
    assert complaint in result.output
    assert "Traceback" not in result.output


def test_masked_sys_is_not_taken_for_no_driver(tmp_path: Path) -> None:
    unfold("intel-laptop", tmp_path)
    shutil.rmtree(tmp_path / "sys")
    text = show(tmp_path)
    assert "unknown: /sys/devices/system/cpu" in text
    assert "HLT" not in text.replace("one that halts", "")


def test_empty_root(tmp_path: Path) -> None:
    printed = check_everything(tmp_path)
    assert printed["cpus"] == []
    assert printed["findings"] == []


def setpriv(*command: str) -> subprocess.CompletedProcess[str]:
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    package = Path(__file__).parents[1]
    return subprocess.run([*nobody, *command], capture_output=True, text=True, cwd=package)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_without_privileges() -> None:
    if not shutil.which("setpriv") or setpriv(sys.executable, "-c", "import click").returncode:
        pytest.skip("nobody cannot run this Python")
    result = setpriv(sys.executable, "-m", "lightsleep", "scan", "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    jsonschema.validate(printed, SCHEMA)
    latency_device = Path("/dev/cpu_dma_latency")
    if latency_device.exists() and not latency_device.stat().st_mode & stat.S_IROTH:
        # Beside debugfs, where it is mounted: that is root's, too.
        assert printed["problems"]["dev/cpu_dma_latency"] == "Permission denied"
        assert set(printed["problems"].values()) == {"Permission denied"}


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
