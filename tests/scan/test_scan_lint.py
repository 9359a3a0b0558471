# SPDX-License-Identifier: GPL-2.0-only
"""Every lint rule: a machine on which it fires, and a near miss on which it does not."""

import re
import shutil
from pathlib import Path

import pytest
from paths import ROOT
from scan_trees import NAMES, plant, unfold

from lightsleep.scan.collect import collect
from lightsleep.scan.lint import RULES, lint
from lightsleep.scan.rule import Finding

CPU = "sys/devices/system/cpu"
HALTPOLL = "sys/module/haltpoll/parameters/guest_halt_poll"
LIGHTSLEEP = "sys/module/cpuidle_lightsleep/parameters"
GOVERNOR = f"{CPU}/cpuidle/current_governor"

ALL_DISABLED = "\n".join(f"{CPU}/cpu5/cpuidle/state{i}/disable: 1" for i in (1, 2, 3))
NO_POLL = f"{CPU}/cpu{{0-7}}/cpuidle/state0/disable: 1"
LARGE = f"{CPU}/cpu{{2-3}}/cpuidle/state1/name: big-rail-power-"
EQUAL = f"{CPU}/cpu{{0-7}}/cpuidle/state2/latency: 1\n{CPU}/cpu{{0-7}}/cpuidle/state2/residency: 10"

# Rule -> (machine, what is changed on it, a part of what the finding must say).
FIRES = {
    "idle-poll-wins": (
        "no-cpuidle",
        "proc/cmdline: idle=poll cpuidle_haltpoll.force=1",
        "cpuidle_haltpoll.force=1",
    ),
    "idle-poll-smt": ("intel-laptop", "proc/cmdline: idle=poll", "SMT"),
    "idle-override": (
        "no-cpuidle",
        "proc/cmdline: idle=halt processor.max_cstate=3",
        "processor.max_cstate=3",
    ),
    "cpuidle-off": (
        "no-cpuidle",
        "proc/cmdline: cpuidle.off=1 cpuidle.governor=teo",
        "cpuidle.governor=teo",
    ),
    "governor-unknown": ("intel-laptop", "proc/cmdline: cpuidle.governor=teoo", "teoo"),
    "acpi-takes-over": (
        "intel-laptop",
        f"proc/cmdline: intel_idle.max_cstate=0\n{CPU}/cpuidle/current_driver: acpi_idle",
        "C10",
    ),
    "max-cstate-unused": ("intel-laptop", "proc/cmdline: processor.max_cstate=1", "intel_idle"),
    "haltpoll-grow-start": ("sap-hana-guest", "", "24,000,000 ns is above"),
    "haltpoll-zero": ("kvm-haltpoll-zero", "", "guest_halt_poll_ns 0"),
    "haltpoll-unused": ("sap-hana-guest", f"{GOVERNOR}: menu", "governor is menu"),
    "haltpoll-not-bound": (
        "no-cpuidle",
        "sys/module/cpuidle_haltpoll/parameters/force: Y",
        "driver is none",
    ),
    "haltpoll-shallow": ("intel-laptop", f"{GOVERNOR}: haltpoll", "C10"),
    "haltpoll-ignores-disable": (
        "kvm-haltpoll",
        f"{CPU}/cpu{{1,3}}/cpuidle/state0/disable: 1",
        "CPU 1,3",
    ),
    "only-polling-left": (
        "powernv-power9",
        ALL_DISABLED,
        "CPU 5",
    ),
    "qos-polls": ("intel-laptop", "dev/cpu_dma_latency: 1", "CPU 0-7: /dev/cpu_dma_latency 1 us"),
    "poll-queues-missing": (
        "intel-laptop",
        "sys/module/nvme/parameters/poll_queues: 2",
        "nvme0n1 has io_poll 0",
    ),
    "lightsleep-wasteful": (
        "lightsleep-guest",
        f"{LIGHTSLEEP}/mode: fixed\n{CPU}/cpu{{0-3}}/lightsleep/hits: 9000",
        "36,000 of 400,000 polls (9.0%)",
    ),
    "poll-limit-core": ("kvm-haltpoll", f"{GOVERNOR}: menu", "CPU 0-3"),
    "asymmetric-states": (
        "intel-laptop",
        f"{CPU}/cpu{{0-1}}/cpuidle/state5/disable: 1",
        "CPU 0-1: C10; CPU 2-7: none",
    ),
    "nohz-off": ("intel-laptop", "proc/cmdline: nohz=off", "C10"),
    "lightsleep-off": ("lightsleep-guest", f"{LIGHTSLEEP}/mode: off", "mode off"),
    "lightsleep-limit-low": (
        "lightsleep-guest",
        f"{LIGHTSLEEP}/poll_limit_us: 100\n{LIGHTSLEEP}/wait_weight: 4",
        "poll_limit_us 100 is below the 208 us that a missed wakeup costs",
    ),
    "arm64-ipi": ("lightsleep-guest", "proc/sys/kernel/arch: aarch64", "arm64"),
    "states-not-sorted": (
        "intel-laptop",
        f"{CPU}/cpu3/cpuidle/state4/latency: 1",
        "C8 after C6",
    ),
    "residency-below-latency": (
        "arm64-psci",
        f"{CPU}/cpu{{0-3}}/cpuidle/state1/residency: 349",
        "cpu-sleep (349 us residency, 350 us latency)",
    ),
    "equal-states": (
        "powernv-power9",
        EQUAL,
        "stop0_lite and stop0",
    ),
}

# Rule -> machines that come close.
QUIET = {
    "idle-poll-wins": [
        ("no-cpuidle", "proc/cmdline: idle=poll"),
        ("no-cpuidle", "proc/cmdline: idle=poll idle=nomwait intel_idle.max_cstate=1"),
        ("arm64-psci", "proc/cmdline: idle=poll cpuidle.governor=teo"),
        ("no-cpuidle", "proc/cmdline: quiet -- idle=poll cpuidle_haltpoll.force=1"),
    ],
    "idle-poll-smt": [("no-cpuidle", "proc/cmdline: idle=poll")],
    "idle-override": [
        ("no-cpuidle", "proc/cmdline: idle=nomwait processor.max_cstate=3"),
        ("no-cpuidle", "proc/cmdline: idle=halt"),
    ],
    "cpuidle-off": [
        ("no-cpuidle", "proc/cmdline: cpuidle.off=0 cpuidle.governor=menu"),
        ("no-cpuidle", "proc/cmdline: cpuidle.off=1"),
    ],
    "governor-unknown": [
        ("intel-laptop", "proc/cmdline: cpuidle.governor=TEO"),
        ("container", "proc/cmdline: cpuidle.governor=teo"),
    ],
    "acpi-takes-over": [
        ("intel-laptop", "proc/cmdline: intel_idle.max_cstate=0"),
        (
            "kvm-haltpoll",
            f"proc/cmdline: intel_idle.max_cstate=0\n{CPU}/cpuidle/current_driver: acpi_idle",
        ),
    ],
    "max-cstate-unused": [
        ("intel-laptop", "proc/cmdline: processor.max_cstate=1 intel_idle.max_cstate=1")
    ],
    "haltpoll-grow-start": [
        ("sap-hana-guest", f"{HALTPOLL}_grow_start: 2400000"),
        ("sap-hana-guest", f"{HALTPOLL}_ns: 0"),
        ("sap-hana-guest", f"{HALTPOLL}_allow_shrink: N"),
        ("sap-hana-guest", f"{GOVERNOR}: menu"),
        ("sap-hana-guest", f"{CPU}/cpuidle/current_driver: lightsleep"),
    ],
    "haltpoll-zero": [
        ("kvm-haltpoll", ""),
        ("kvm-haltpoll-zero", f"{GOVERNOR}: menu"),
        ("lightsleep-guest", f"{GOVERNOR}: haltpoll\n{HALTPOLL}_ns: 0"),
    ],
    "haltpoll-unused": [
        ("sap-hana-guest", ""),
        (
            "sap-hana-guest",
            f"{GOVERNOR}: menu\n{CPU}/cpuidle/current_driver: lightsleep",
        ),
        (
            "kvm-haltpoll",
            f"{GOVERNOR}: menu\n{CPU}/cpuidle/current_driver: none",
        ),
    ],
    "haltpoll-not-bound": [("kvm-haltpoll-zero", ""), ("kvm-haltpoll", f"{GOVERNOR}: menu")],
    "haltpoll-shallow": [("kvm-haltpoll", "")],
    "haltpoll-ignores-disable": [
        ("kvm-haltpoll", f"{GOVERNOR}: menu\n{CPU}/cpu1/cpuidle/state0/disable: 1"),
        *(
            ("lightsleep-guest", f"{GOVERNOR}: haltpoll\n{CPU}/cpu1/cpuidle/state{i}/disable: 1")
            for i in (0, 1)
        ),
    ],
    "only-polling-left": [
        (
            "powernv-power9",
            f"{CPU}/cpu5/cpuidle/state1/disable: 1\n{CPU}/cpu5/cpuidle/state2/disable: 1",
        ),
        ("kvm-haltpoll", f"{CPU}/cpu0/cpuidle/state1/disable: 1"),
        ("arm64-psci", f"{CPU}/cpu0/cpuidle/state1/disable: 1"),
        # ladder chooses the first state that halts though it is disabled.
        ("powernv-power9", f"{ALL_DISABLED}\n{GOVERNOR}: ladder"),
    ],
    "qos-polls": [
        ("intel-laptop", f"dev/cpu_dma_latency: 1\n{NO_POLL}"),
        # One state is left, and teo compares nothing.
        (
            "intel-laptop",
            f"dev/cpu_dma_latency: 1\n{NO_POLL}\n{GOVERNOR}: teo\n"
            + "\n".join(f"{CPU}/cpu{{0-7}}/cpuidle/state{i}/disable: 1" for i in range(2, 6)),
        ),
        ("intel-laptop", "dev/cpu_dma_latency: 2"),
        ("kvm-haltpoll", f"{CPU}/cpu0/cpuidle/state1/latency: 5\ndev/cpu_dma_latency: 3"),
        ("arm64-psci", f"{CPU}/cpu0/power/pm_qos_resume_latency_us: n/a"),
        ("lightsleep-guest", f"dev/cpu_dma_latency: 0\n{LIGHTSLEEP}/mode: off"),
    ],
    "poll-queues-missing": [
        (
            "intel-laptop",
            "sys/module/nvme/parameters/poll_queues: 2\nsys/class/block/nvme0n1/queue/io_poll: 1",
        ),
        ("kvm-haltpoll-zero", "sys/module/nvme/parameters/poll_queues: 2"),
        # A disk over TCP, by one path and by several.
        *(
            (
                "intel-laptop",
                "sys/module/nvme/parameters/poll_queues: 2\n"
                f"sys/class/block/nvme0n1/device/{path}transport: tcp",
            )
            for path in ("", "nvme3/")
        ),
    ],
    "lightsleep-wasteful": [
        ("lightsleep-guest", f"{CPU}/cpu{{0-3}}/lightsleep/hits: 9000"),
        ("lightsleep-guest", f"{LIGHTSLEEP}/mode: fixed"),
        (
            "lightsleep-guest",
            f"{LIGHTSLEEP}/mode: fixed\n{CPU}/cpu{{0-3}}/lightsleep/polls: 200\n"
            f"{CPU}/cpu{{0-3}}/lightsleep/hits: 0",
        ),
    ],
    "poll-limit-core": [
        ("intel-laptop", ""),
        ("kvm-haltpoll", ""),
        ("lightsleep-guest", f"{CPU}/cpu{{0-3}}/cpuidle/state1/residency: 1"),
        ("kvm-haltpoll", f"{GOVERNOR}: menu\n{CPU}/cpu{{0-3}}/cpuidle/state0/disable: 1"),
    ],
    "asymmetric-states": [
        ("intel-laptop", f"{CPU}/cpu{{0-7}}/cpuidle/state5/disable: 1"),
        # Large and small cores, each with its own name of the deepest state.
        ("arm64-psci", f"{LARGE}\n{CPU}/cpu{{0-3}}/cpuidle/state1/disable: 1"),
    ],
    "nohz-off": [
        ("intel-laptop", "proc/cmdline: nohz=on"),
        ("intel-laptop", "proc/cmdline: nohz_full=1-3"),
        ("kvm-haltpoll", "proc/cmdline: nohz=off"),
    ],
    "lightsleep-off": [("lightsleep-guest", "")],
    "lightsleep-limit-low": [
        ("lightsleep-guest", f"{LIGHTSLEEP}/poll_limit_us: 52"),
        ("lightsleep-guest", f"{LIGHTSLEEP}/poll_limit_us: 208\n{LIGHTSLEEP}/wait_weight: 4"),
        ("lightsleep-guest", f"{LIGHTSLEEP}/poll_limit_us: 20\n{LIGHTSLEEP}/halt_cost_ns: 0"),
        ("lightsleep-guest", f"{LIGHTSLEEP}/poll_limit_us: 20\n{LIGHTSLEEP}/mode: off"),
    ],
    "arm64-ipi": [
        ("arm64-psci", ""),
        ("lightsleep-guest", ""),
        (
            "lightsleep-guest",
            f"proc/sys/kernel/arch: aarch64\n{CPU}/cpuidle/available_governors: menu haltpoll",
        ),
        (
            "lightsleep-guest",
            "proc/sys/kernel/arch: aarch64\nsys/module/idle_poll/parameters/polling_flag: Y",
        ),
        (
            "arm64-psci",
            f"{LIGHTSLEEP}/mode: off",
        ),
    ],
    "states-not-sorted": [("intel-laptop", f"{CPU}/cpu3/cpuidle/state4/latency: 85")],
    "residency-below-latency": [
        ("arm64-psci", f"{CPU}/cpu{{0-3}}/cpuidle/state1/residency: 350"),
        ("intel-laptop", f"{CPU}/cpu0/cpuidle/state2/residency: garbage"),
    ],
    "equal-states": [
        ("powernv-power9", f"{CPU}/cpu0/cpuidle/state2/latency: 1"),
        *(
            ("powernv-power9", f"{EQUAL}\n{CPU}/cpu{{0-7}}/cpuidle/state{i}/disable: 1")
            for i in (1, 2)
        ),
    ],
}

# What is to be said of each recorded or made-up machine as it is.
AS_IT_IS = {
    "kvm-haltpoll-zero": {"haltpoll-zero"},
    "sap-hana-guest": {"haltpoll-grow-start"},
    # Under TCG a halt costs milliseconds.
    "lightsleep-tcg": {"lightsleep-limit-low"},
}


def findings(machine: str, change: str, root: Path) -> list[Finding]:
    unfold(machine, root)
    plant(root, change)
    return lint(collect(root)[0])


def test_nothing_is_said_of_what_is_masked(tmp_path: Path) -> None:
    unfold("kvm-haltpoll-zero", tmp_path)
    shutil.rmtree(tmp_path / CPU)
    assert lint(collect(tmp_path)[0]) == []


def test_every_rule_has_both_tests() -> None:
    ids = [rule.id for rule in RULES]
    assert len(set(ids)) == len(ids)
    assert set(ids) == set(FIRES) == set(QUIET)


@pytest.mark.parametrize("rule", FIRES)
def test_rule_fires(rule: str, tmp_path: Path) -> None:
    machine, change, part = FIRES[rule]
    found = {finding.id: finding for finding in findings(machine, change, tmp_path)}
    assert rule in found
    assert part in found[rule].what
    assert found[rule].why
    assert found[rule].fix


@pytest.mark.parametrize(
    ("rule", "machine", "change"),
    [(rule, machine, change) for rule, cases in QUIET.items() for machine, change in cases],
)
def test_rule_stays_quiet(rule: str, machine: str, change: str, tmp_path: Path) -> None:
    assert rule not in {finding.id for finding in findings(machine, change, tmp_path)}


@pytest.mark.parametrize("machine", NAMES)
def test_findings_on_machines_as_they_are(machine: str, tmp_path: Path) -> None:
    assert {f.id for f in findings(machine, "", tmp_path)} == AS_IT_IS.get(machine, set())


@pytest.mark.parametrize(
    ("machine", "change", "what"),
    [
        ("intel-laptop", f"{CPU}/cpu2/power/pm_qos_resume_latency_us: n/a", "CPU 2: .* n/a"),
        ("intel-laptop", f"{CPU}/cpu2/power/pm_qos_resume_latency_us: 1", "CPU 2: .* 1"),
        ("kvm-haltpoll", "dev/cpu_dma_latency: 0", "CPU 0-3: /dev/cpu_dma_latency 0 us"),
        (
            "intel-laptop",
            f"dev/cpu_dma_latency: 5\n{CPU}/cpu{{0-7}}/cpuidle/state1/disable: 1",
            "CPU 0-7: /dev/cpu_dma_latency 5 us",
        ),
        # That POLL is disabled helps neither menu, if no latency is tolerated, nor teo.
        ("intel-laptop", f"dev/cpu_dma_latency: 0\n{NO_POLL}", "CPU 0-7: .* 0 us"),
        (
            "intel-laptop",
            f"dev/cpu_dma_latency: 1\n{NO_POLL}\n{GOVERNOR}: teo",
            "CPU 0-7: .* 1 us",
        ),
    ],
)
def test_latency_limits_that_make_cpus_spin(
    machine: str, change: str, what: str, tmp_path: Path
) -> None:
    found = {f.id: f.what for f in findings(machine, change, tmp_path)}
    assert re.fullmatch(what, found["qos-polls"])


@pytest.mark.parametrize("governor", ["menu", "ladder", "haltpoll"])
@pytest.mark.parametrize(
    ("change", "polls"),
    [("10", True), ("0", True), ("52", False), (f"0\n{NO_POLL}", True), (f"10\n{NO_POLL}", False)],
)
def test_lightsleeps_driver_heeds_latency_limits_under_every_governor(
    change: str, polls: bool, governor: str, tmp_path: Path
) -> None:
    """It asks the governor only where POLL is disabled. The latency of HALT is 52 us here."""
    halt = f"{CPU}/cpu{{0-3}}/cpuidle/state1/latency: 52"
    change = f"{GOVERNOR}: {governor}\n{halt}\ndev/cpu_dma_latency: {change}"
    found = {f.id for f in findings("lightsleep-guest", change, tmp_path)}
    assert ("qos-polls" in found) == polls


@pytest.mark.parametrize(
    ("change", "polls"),
    [
        ("dev/cpu_dma_latency: 10", True),
        ("dev/cpu_dma_latency: 52", False),
        ("dev/cpu_dma_latency: 0", False),  # qos-polls says it
        (f"dev/cpu_dma_latency: 10\n{HALTPOLL}_ns: 0", False),
        (f"dev/cpu_dma_latency: 10\n{LIGHTSLEEP}/mode: off", False),
        (f"{CPU}/cpu2/power/pm_qos_resume_latency_us: 10", True),
    ],
)
def test_lightsleeps_driver_polls_where_haltpoll_does_and_no_halt_is_allowed(
    change: str, polls: bool, tmp_path: Path
) -> None:
    """Though POLL is disabled: the governor has chosen it, and HALT is beyond the limit."""
    halt = f"{CPU}/cpu{{0-3}}/cpuidle/state1/latency: 52"
    change = f"{GOVERNOR}: haltpoll\n{CPU}/cpu2/cpuidle/state0/disable: 1\n{halt}\n{change}"
    found = {f.id: f.what for f in findings("lightsleep-guest", change, tmp_path)}
    assert ("haltpoll-ignores-disable" in found) == polls
    assert not polls or found["haltpoll-ignores-disable"].startswith("CPU 2: ")


@pytest.mark.parametrize("transport", ["pcie", ""])
def test_of_nvme_disks_only_those_of_pci_express_lack_queues(
    transport: str, tmp_path: Path
) -> None:
    block = "sys/class/block"
    change = (
        "sys/module/nvme/parameters/poll_queues: 2\n"
        f"{block}/nvme0n1/device/transport: {transport}\n"
        f"{block}/nvme1n1/device/transport: rdma\n{block}/nvme1n1/queue/io_poll: 0"
    )
    found = {f.id: f.what for f in findings("intel-laptop", change, tmp_path)}
    assert found["poll-queues-missing"] == "nvme.poll_queues=2, but nvme0n1 has io_poll 0"


@pytest.mark.parametrize("governor", ["menu", "ladder", "haltpoll"])
def test_lightsleep_polls_where_halt_is_disabled(governor: str, tmp_path: Path) -> None:
    """Other drivers halt where ladder or haltpoll says so."""
    change = f"{GOVERNOR}: {governor}\n{CPU}/cpu1/cpuidle/state1/disable: 1"
    found = {f.id: f.what for f in findings("lightsleep-guest", change, tmp_path)}
    assert found["only-polling-left"].startswith("CPU 1: ")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (f"{LARGE}\n{CPU}/cpu2/cpuidle/state1/disable: 1", "CPU 2: big-rail-power-; CPU 3: none"),
        (
            f"{CPU}/cpu{{0-3}}/cpuidle/state0/name: cluster-sleep-0\n"
            f"{CPU}/cpu{{0-3}}/cpuidle/state1/name: cluster-sleep-0\n"
            f"{CPU}/cpu{{0-1}}/cpuidle/state0/disable: 1\n"
            f"{CPU}/cpu{{2-3}}/cpuidle/state1/disable: 1",
            "CPU 0-1: cluster-sleep-0#0; CPU 2-3: cluster-sleep-0#1",
        ),
    ],
)
def test_cpus_with_the_same_states_are_compared(change: str, what: str, tmp_path: Path) -> None:
    found = {f.id: f.what for f in findings("arm64-psci", change, tmp_path)}
    assert found["asymmetric-states"] == what


def test_warnings_come_first(tmp_path: Path) -> None:
    change = f"proc/cmdline: nohz=off processor.max_cstate=1\n{CPU}/cpu0/cpuidle/state5/disable: 1"
    severities = [f.severity for f in findings("intel-laptop", change, tmp_path)]
    assert severities == ["warning", "note", "note"]


def test_documentation_lists_the_rules() -> None:
    page = (ROOT / "docs" / "scan.md").read_text()
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| (warning|note) \| (.+?) \|$", page)
    assert rows == [(rule.id, rule.severity, rule.why) for rule in RULES]


def test_only_on_intel_an_option_of_intel_idle_limits_the_states(tmp_path: Path) -> None:
    """An AMD machine has acpi_idle whatever the options of intel_idle say."""
    machine, change, _ = FIRES["acpi-takes-over"]
    (found,) = (x for x in findings(machine, change, tmp_path) if x.id == "acpi-takes-over")
    assert found.fix.startswith("Add processor.max_cstate=1. On Intel, ")
    assert "acpi_idle then binds" not in found.why


def test_haltpoll_is_no_advice_where_the_kernel_does_not_offer_it(tmp_path: Path) -> None:
    change = f"{GOVERNOR}: menu\n{CPU}/cpuidle/available_governors: menu"
    (absent,) = (
        x for x in findings("sap-hana-guest", change, tmp_path / "a") if x.id == "haltpoll-unused"
    )
    assert absent.what.endswith("the governor is menu, and this kernel offers no haltpoll")
    assert "where the kernel offers it" in absent.fix
    (there,) = (
        x
        for x in findings("sap-hana-guest", f"{GOVERNOR}: menu", tmp_path / "b")
        if x.id == "haltpoll-unused"
    )
    assert there.what.endswith("the governor is menu")
