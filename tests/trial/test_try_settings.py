# SPDX-License-Identifier: GPL-2.0-only
"""try: which settings a machine can have, and what each of them changes."""

import errno
import os
import subprocess
from pathlib import Path

import fake_modules
import journals
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scan_trees import plant, unfold
from trials import CPU, DRIVER, attempt, prepare, teller, tried

from lightsleep.compare.result import FORMAT
from lightsleep.document import load
from lightsleep.enable import change
from lightsleep.errors import LightsleepError, WrongUsage
from lightsleep.scan.collect import collect
from lightsleep.settings import catalogue, restorer


@pytest.mark.parametrize(
    ("machine", "setting", "said"),
    [
        ("no-cpuidle", "governor:menu", "no cpuidle driver is bound"),
        ("no-cpuidle", "qos:10us", "nothing obeys a latency limit"),
        ("no-cpuidle", "no-deeper-than:C1", "there are no idle states"),
        ("no-cpuidle", "haltpoll", "no governor haltpoll"),
        ("no-cpuidle", "kvm-halt-poll:0", "no KVM host"),
        ("no-cpuidle", "sysfs:/sys/nowhere=1", "there is no file"),
        ("no-cpuidle", "sysfs:/sys/**/online=1", "there is no file"),
        ("no-cpuidle", "sysfs:/sys/a**/online=1", "there is no file"),
        ("no-cpuidle", "sysfs:/sys/no*/where=1", "there is no file"),
        ("no-cpuidle", f"sysfs:/{'x' * 1000}=1", "longer than 1000 characters"),
        ("intel-laptop", "lightsleep", "intel_idle is bound"),
        ("intel-laptop", "haltpoll", "no governor haltpoll"),
        ("intel-laptop", "governor:haltpoll", "ladder, menu, teo"),
        ("intel-laptop", "no-deeper-than:C10", "no idle state is deeper"),
        ("intel-laptop", "no-deeper-than:C3", "states of all CPUs: POLL, C1, C1E"),
        ("kvm-haltpoll", "no-deeper-than:POLL", "ignores disabled states"),
        ("kvm-haltpoll", "lightsleep", "haltpoll is bound"),
        ("lightsleep-guest", "haltpoll", "no governor haltpoll"),
    ],
)
def test_what_cannot_be_set_says_why_and_runs_nothing(
    machine: str, setting: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold(machine, tmp_path / "machine")
    prepare(root, monkeypatch)
    before = fake_modules.snapshot(root)
    seen = tmp_path / "seen"
    result = attempt("-s", setting, "--", "touch", str(seen))
    assert result.exit_code == 1
    assert said in " ".join(result.output.split())
    assert not seen.exists()
    assert fake_modules.snapshot(root) == before


def test_a_driver_that_the_idle_loop_never_asks_cannot_be_set(tmp_path: Path) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path), "proc/sys/kernel/arch: aarch64")
    assert catalogue.plan("lightsleep", collect(root)[0], root)
    plant(root, "proc/cmdline: nohlt")
    with pytest.raises(catalogue.CannotSet, match="nohlt on the kernel command line"):
        catalogue.plan("lightsleep", collect(root)[0], root)


@pytest.mark.parametrize(
    ("machine", "setting", "changes"),
    [
        ("intel-laptop", "governor:teo", [(f"{CPU}/cpuidle/current_governor", "teo")]),
        ("intel-laptop", "no-deeper-than:c8", [(f"{CPU}/cpu0/cpuidle/state5/disable", "1")]),
        ("intel-laptop", f"sysfs:/{CPU}/smt/active=0", [(f"{CPU}/smt/active", "0")]),
        (
            "intel-laptop",
            f"sysfs:/{CPU}/cpu0/cpuidle/state*/disable=1",
            [(f"{CPU}/cpu0/cpuidle/state{x}/disable", "1") for x in range(6)],
        ),
        (
            "lightsleep-guest",
            "lightsleep:fixed:1ms",
            [
                ("sys/module/cpuidle_lightsleep/parameters/mode", "fixed"),
                ("sys/module/cpuidle_lightsleep/parameters/poll_limit_us", "1000"),
            ],
        ),
        (
            "lightsleep-guest",
            "lightsleep:weight=100:300us",
            [
                ("sys/module/cpuidle_lightsleep/parameters/mode", "adaptive"),
                ("sys/module/cpuidle_lightsleep/parameters/poll_limit_us", "300"),
                ("sys/module/cpuidle_lightsleep/parameters/wait_weight", "100"),
            ],
        ),
        (
            "kvm-haltpoll",
            "haltpoll:50us",
            [
                (f"{CPU}/cpuidle/current_governor", "haltpoll"),
                ("sys/module/haltpoll/parameters/guest_halt_poll_ns", "50000"),
            ],
        ),
    ],
)
def test_plans(machine: str, setting: str, changes: list[tuple[str, str]], tmp_path: Path) -> None:
    root = unfold(machine, tmp_path)
    planned = catalogue.plan(setting, collect(root)[0], root)
    knobs = [(x.path, x.value) for x in planned if isinstance(x, catalogue.Knob)]
    assert knobs[: len(changes)] == changes
    assert len(knobs) == (8 if "deeper" in setting else len(changes))


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("governor:menu+lightsleep:off", "lightsleep:off+governor:menu"),
        ("governor:ladder+haltpoll", "haltpoll+governor:ladder"),
        ("qos:10us+lightsleep", "lightsleep+qos:10us"),
    ],
)
def test_the_driver_comes_first_wherever_it_stands(text: str, same: str, root: Path) -> None:
    plant(root, "dev/cpu_dma_latency: 2000000000")
    scan = collect(root)[0]
    assert catalogue.plan(text, scan, root) == catalogue.plan(same, scan, root)
    assert change.together(None, text) == same


def test_a_state_that_some_cpus_lack_is_no_limit_for_all(tmp_path: Path) -> None:
    root = unfold("intel-laptop", tmp_path)
    plant(root, f"{CPU}/cpu{{2,4-5}}/cpuidle/state3/name: C6S")
    scan = collect(root)[0]
    with pytest.raises(catalogue.CannotSet, match="CPU 2,4-5 has no idle state 'c6'") as refused:
        catalogue.plan("no-deeper-than:c6", scan, root)
    assert "states of all CPUs: POLL, C1, C1E, C8, C10" in refused.value.message
    assert len(catalogue.plan("no-deeper-than:C8", scan, root)) == 8


GOVERNOR = f"{CPU}/cpuidle/current_governor"
LADDER = f"{GOVERNOR}: ladder"


@pytest.mark.parametrize(
    ("machine", "planted", "setting", "refused"),
    [
        ("intel-laptop", "", "qos:889us", None),
        ("intel-laptop", "", "qos:890us", "no idle state has an exit latency of more than 890 us"),
        ("intel-laptop", f"{CPU}/cpu3/cpuidle/state5/latency: ?", "qos:5ms", None),
        ("intel-laptop", LADDER, "qos:9us", None),
        ("intel-laptop", f"{CPU}/cpu{{0-7}}/cpuidle/state2/latency: 1", "qos:1us", None),
        ("arm64-psci", "", "qos:0", None),
        ("arm64-psci", LADDER, "qos:300us", None),
        ("lightsleep-guest", "", "qos:51us", None),
        ("lightsleep-guest", LADDER, "qos:51us", None),  # the driver itself obeys it
        ("lightsleep-guest", LADDER, "qos:52us", "more than 52 us"),
        ("lightsleep-guest", f"{LADDER}\n{CPU}/cpuidle/current_driver: x", "qos:0", None),
        (
            "lightsleep-guest",
            f"{LADDER}\n{CPU}/cpuidle/current_driver: x",
            "qos:51us",
            "ladder always uses the one state that halts",
        ),
        (
            "lightsleep-guest",
            f"{LADDER}\n{CPU}/cpuidle/current_driver: x\n{CPU}/cpu2/cpuidle/state0/name: snooze",
            "qos:51us",
            None,
        ),
        ("kvm-haltpoll", f"{CPU}/cpu0/cpuidle/state1/latency: 99", "qos:0", None),
        (
            "kvm-haltpoll",
            f"{CPU}/cpu0/cpuidle/state1/latency: 99",
            "qos:10us",
            "haltpoll obeys no latency limit but 0",
        ),
        ("kvm-haltpoll", "", "qos:10us+governor:menu", None),
    ],
)
def test_a_latency_limit_that_nothing_would_obey(
    machine: str, planted: str, setting: str, refused: str | None, tmp_path: Path
) -> None:
    root = plant(unfold(machine, tmp_path), f"dev/cpu_dma_latency: 2000000000\n{planted}")
    if refused:
        with pytest.raises(catalogue.CannotSet, match=refused):
            catalogue.plan(setting, collect(root)[0], root)
    else:
        assert catalogue.plan(setting, collect(root)[0], root)


def test_a_star_names_each_file_once_and_by_number(root: Path) -> None:
    policies = [f"{CPU}/cpufreq/policy{x}/scaling_governor" for x in (2, 0, 10)]
    for file in policies:
        plant(root, f"{file}: powersave")
    for cpu, policy in ((0, 0), (1, 0), (2, 2)):
        (root / CPU / f"cpu{cpu}").mkdir(parents=True, exist_ok=True)
        (root / CPU / f"cpu{cpu}/cpufreq").symlink_to(f"../cpufreq/policy{policy}")

    def planned(path: str) -> list[str]:
        changes = catalogue.plan(f"sysfs:/{CPU}/{path}=performance", collect(root)[0], root)
        assert all(isinstance(x, catalogue.Knob) and x.value == "performance" for x in changes)
        return [x.path for x in changes if isinstance(x, catalogue.Knob)]

    found = planned("cpufreq/policy*/scaling_governor")
    assert found == [f"{CPU}/cpufreq/policy{x}/scaling_governor" for x in (0, 2, 10)]
    found = planned("cpu*/cpufreq/scaling_governor")
    assert found == [f"{CPU}/cpu{x}/cpufreq/scaling_governor" for x in (0, 2)]


def test_a_result_of_a_long_setting_can_be_read(root: Path) -> None:
    names = [f"sys/devices/system/cpu/cpu{x}/power/pm_qos_resume_latency_us" for x in range(4)]
    for name in names:
        plant(root, f"{name}: 0")
    setting = "+".join(f"sysfs:/{name}=20" for name in names)
    tried("-n", "6", "--no-control", "-s", setting, "-o", str(root.parent / "r.json"), "--", "true")
    assert setting in load(root.parent / "r.json", FORMAT).arms


def test_what_a_killed_command_left_is_set_back_before_anything_is_planned(root: Path) -> None:
    plant(root, "sys/module/m/parameters/b: 0")
    knob = root / "sys/module/m/parameters/b"
    journals.leave(root, "try", journals.knob(knob, "0", "1"))
    setting = "sysfs:/sys/module/m/parameters/b=1"
    result = attempt("-n", "6", "--no-control", "-s", setting, "--", "true")
    assert result.exit_code == 0, result.output
    said = " ".join(result.stderr.split())
    assert "note: an earlier lightsleep try left settings changed: they are set back now" in said
    assert knob.read_text() == "0\n"


def test_what_is_in_effect_is_no_setting_to_compare(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    before = fake_modules.snapshot(root)
    result = attempt("-s", "lightsleep", "--", "true")
    assert result.exit_code == 1
    assert "lightsleep is in effect already" in result.output
    assert "run lightsleep disable first" in result.output
    assert "nothing was changed, and nothing was run" in result.output
    assert fake_modules.snapshot(root) == before
    tried("-n", "1", "-s", "lightsleep:fixed:100us", "-m", r"t=t (\d+):lower", "--", *teller(root))


def test_disable_is_no_help_where_the_driver_is_built_in(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    (root / "sys/module/cpuidle_lightsleep/initstate").unlink()
    file = plant(root, "home/cpuidle_lightsleep.ko: module") / "home/cpuidle_lightsleep.ko"
    for words in ([], ["--module", str(file)]):
        result = attempt(*words, "-s", "lightsleep", "--", "true")
        assert result.exit_code == 1
        said = " ".join(result.output.split())
        assert "is built into this kernel" in said
        assert "lightsleep disable" not in said
    tried("-n", "1", "-s", "lightsleep:fixed:100us", "-m", r"t=t (\d+):lower", "--", *teller(root))


def test_haltpoll_and_lightsleep_take_each_others_place(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    parts = catalogue.plan("lightsleep", collect(root)[0], root)
    assert [type(x).__name__ for x in parts] == ["Unload", "Load"]
    assert parts[0] == catalogue.Unload(
        "cpuidle_haltpoll", ("modprobe", "cpuidle_haltpoll", "force=1")
    )
    before = fake_modules.snapshot(root)
    document = tried("-n", "1", "-m", r"t=t (\d+):lower", "--", *teller(root))
    samples = document["metrics"]["t"]["samples"]
    assert (samples["as-is"], samples["lightsleep"]) == ([10.0], [1.0])
    assert fake_modules.snapshot(root) == before


def test_the_governor_that_haltpoll_brings_is_nobody_elses_change(root: Path) -> None:
    before = fake_modules.snapshot(root)
    settings = "lightsleep+governor:ladder,haltpoll"
    tried("-n", "4", "--seed", "1", "-s", settings, "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert fake_modules.snapshot(root) == before


def test_haltpoll_is_tried_after_it_was_gone(root: Path) -> None:
    plant(root, "sys/module/haltpoll/parameters/guest_halt_poll_ns: 200000")
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    before = fake_modules.snapshot(root)
    settings = "lightsleep+governor:ladder,haltpoll:100us"
    tried("-n", "4", "--seed", "1", "-s", settings, "-m", r"t=t (\d+):lower", "--", *teller(root))
    assert fake_modules.snapshot(root) == before | {
        "governor_before": fake_modules.snapshot(root)["governor_before"]
    }


def test_a_file_is_for_one_of_the_settings(root: Path) -> None:
    file = plant(root, "home/cpuidle_lightsleep.ko: module") / "home/cpuidle_lightsleep.ko"
    words = ["--module", str(file), "-m", r"t=t (\d+):lower"]
    settings = "haltpoll,haltpoll+governor:menu"
    refused = attempt(*words, "-s", settings, "--", *teller(root))
    assert refused.exit_code == 2
    assert f"which is no part of as-is,{settings}: leave out --module" in refused.output
    tried("-n", "1", *words, "-s", "haltpoll,lightsleep+governor:menu", "--", *teller(root))
    renamed = file.rename(file.with_name("mine.ko"))
    refused = attempt("--module", str(renamed), "--", "true")
    assert refused.exit_code == 2
    assert "mine.ko has to be called cpuidle_lightsleep.ko" in " ".join(refused.output.split())


@pytest.mark.parametrize(
    ("machine", "setting", "file"),
    [
        ("kvm-haltpoll", "haltpoll:1us", "sys/module/haltpoll/parameters/guest_halt_poll_ns"),
        ("intel-laptop", "kvm-halt-poll:0", "sys/module/kvm/parameters/halt_poll_ns"),
        ("intel-laptop", "sysfs:/sys/module/m/parameters/x=1", "sys/module/m/parameters/x"),
    ],
)
@pytest.mark.parametrize(
    ("mode", "said"), [(0o444, "is read-only"), (0o200, "cannot be read, so it could not be set")]
)
def test_a_file_that_cannot_be_set_or_set_back_is_refused_first(
    machine: str, setting: str, file: str, mode: int, said: str, tmp_path: Path
) -> None:
    root = unfold(machine, tmp_path)
    scan = collect(plant(root, f"{file}: 5"))[0]
    (root / file).chmod(mode)
    with pytest.raises(catalogue.CannotSet, match=f"/{file} {said}"):
        catalogue.plan(setting, scan, root)


@pytest.mark.parametrize(
    ("online", "why"),
    [
        ("0", r"CPU 1 is offline; bring it online, or name .* each with sysfs:, joined by \+"),
        ("1", "Device or resource busy"),
    ],
)
def test_a_policy_of_an_offline_cpu_is_refused_first(
    online: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there, and answer EBUSY."""
    root, read = unfold("intel-laptop", tmp_path), restorer.read_knob
    for policy in (0, 1):
        plant(root, f"{CPU}/cpufreq/policy{policy}/scaling_governor: powersave")
    plant(root, f"{CPU}/cpu1/online: {online}")

    def read_knob(root: Path, name: str) -> str | None:
        if "policy1" in name:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), name)
        return read(root, name)

    monkeypatch.setattr(restorer, "read_knob", read_knob)
    setting = f"sysfs:/{CPU}/cpufreq/policy*/scaling_governor=performance"
    said = f"/{CPU}/cpufreq/policy1/scaling_governor cannot be read: {why}"
    with pytest.raises(catalogue.CannotSet, match=said):
        catalogue.plan(setting, collect(root)[0], root)


@pytest.mark.parametrize("word", ["foo", "adaptve:50us", "50us:100us", "weight=2:weight=3"])
def test_what_is_no_mode_is_no_time_either(word: str, tmp_path: Path) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    with pytest.raises(WrongUsage, match=r"is no mode \(adaptive, fixed, off\), no poll limit"):
        catalogue.plan(f"lightsleep:{word}", collect(root)[0], root)


@pytest.mark.parametrize("value", ["Y", "1"])
def test_a_switch_that_is_on_is_in_effect(value: str, root: Path) -> None:
    plant(root, "sys/module/m/parameters/b: Y")
    result = attempt("-s", f"sysfs:/sys/module/m/parameters/b={value}", "--", "true")
    assert result.exit_code == 1
    assert "is in effect already" in result.output


@pytest.mark.parametrize("setting", ["kvm-halt-poll:0.4ns", "haltpoll:0.4ns", "qos:0.0004us"])
def test_a_time_too_short_is_not_taken_for_none(setting: str, tmp_path: Path) -> None:
    root = unfold("kvm-haltpoll", tmp_path)
    with pytest.raises(WrongUsage, match="is not a time of 1ns or more, such as 200us"):
        catalogue.plan(setting, collect(root)[0], root)


def test_a_latency_limit_that_is_none(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    plant(root, "dev/cpu_dma_latency: 2000000000")
    for limit in ("2000000ms", "3000000ms"):
        result = attempt("-s", f"qos:{limit}", "--", "true")
        assert result.exit_code == 2
        assert "2000000ms and more is no limit" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("lightsleep,haltpoll:200us", ["lightsleep", "haltpoll:200us"]),
        ("lightsleep,nonsense", ["lightsleep", "nonsense"]),
        ("sysfs:/sys/x=0,2", ["sysfs:/sys/x=0,2"]),
        ("sysfs:/sys/x=0,2,lightsleep", ["sysfs:/sys/x=0,2", "lightsleep"]),
        ("lightsleep+sysfs:/sys/x=0,2, qos:10us", ["lightsleep+sysfs:/sys/x=0,2", " qos:10us"]),
        ("sysfs:/sys/x=0,qos", ["sysfs:/sys/x=0", "qos"]),
    ],
)
def test_a_list_of_settings(text: str, settings: list[str]) -> None:
    assert catalogue.split(text) == settings


def test_a_driver_with_disabled_states_is_not_sent_away(root: Path) -> None:
    """disable sends it away whatever its states, so nothing else is asked for."""
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    for cpu in range(2):
        plant(root, f"{CPU}/cpu{cpu}/cpuidle/state0/name: POLL")
        plant(root, f"{CPU}/cpu{cpu}/cpuidle/state0/disable: {cpu}")
    scan, _ = collect(root)
    with pytest.raises(LightsleepError, match="POLL is disabled: enable it first"):
        catalogue.plan("haltpoll", scan, root)
    result = attempt("-s", "haltpoll", "--", "true")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "Run lightsleep disable first" in said
    assert "POLL is disabled" not in said


def test_disable_is_no_help_where_the_kernel_lacks_haltpoll(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    module = next(root.glob("lib/modules/*/kernel/drivers/cpuidle/cpuidle-haltpoll.ko"))
    module.unlink()
    result = attempt("-s", "haltpoll", "--", "true")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "has no module cpuidle-haltpoll" in said
    assert "lightsleep disable" not in said


def test_what_the_driver_has_learned_is_not_thrown_away(root: Path) -> None:
    """After each run of haltpoll, as-is would begin untrained: no machine as it was found."""
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    before = fake_modules.snapshot(root)
    for setting in ("haltpoll", "haltpoll:100us+governor:menu"):
        result = attempt("-s", f"lightsleep:weight=20,{setting}", "--", "true")
        assert result.exit_code == 1
        said = " ".join(result.output.split())
        assert f"{setting} cannot be compared with as-is while lightsleep is active" in said
        assert "Run lightsleep disable first (it also ends --persist), and name lightsleep" in said
        assert "nothing was changed, and nothing was run" in said
        assert "weight=20" not in said
    assert fake_modules.snapshot(root) == before
    subprocess.run(["rmmod", "cpuidle_lightsleep"], check=True)
    settings = "haltpoll,lightsleep:weight=20"
    tried("-n", "1", "-s", settings, "-m", r"t=t (\d+):lower", "--", *teller(root))


@pytest.mark.parametrize(
    ("found", "other"), [("menu", "ladder"), ("ladder", "menu"), ("haltpoll", "ladder")]
)
def test_the_governor_is_as_it_was_after_haltpoll_was_loaded_again(
    found: str, other: str, root: Path, tmp_path: Path
) -> None:
    """The kernel chooses the driver's governor whenever that driver is registered."""
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    governor, seen = f"{CPU}/cpuidle/current_governor", tmp_path / "seen"
    before_haltpoll = (root / "governor_before").read_text().strip()
    plant(root, f"{governor}: {found}")
    before = fake_modules.snapshot(root)
    settings = f"lightsleep,lightsleep+governor:{other}"
    command = f"echo $(cat {root / DRIVER} {root / governor}) >>{seen}"
    words = ["-n", "2", "--no-control", "-s", settings, "--", "sh", "-c", command]
    result = attempt(*words)
    assert result.exit_code == 0, result.output
    assert "note" not in result.output
    # What the kernel would choose without haltpoll nobody can read.
    after = fake_modules.snapshot(root) | {"governor_before": before["governor_before"]}
    assert after == before
    kept = before_haltpoll if found == "haltpoll" else found
    expected = [f"haltpoll {found}", f"lightsleep {kept}", f"lightsleep {other}"]
    assert sorted(seen.read_text().splitlines()) == sorted(3 * expected)


@given(st.text(st.sampled_from("lightsepqo:+-0159um/=.,$ "), max_size=30))
def test_no_text_is_a_setting_by_accident(text: str) -> None:
    scan, root = collect(Path("/"))[0], Path("/nonexistent")
    with pytest.raises(LightsleepError):
        catalogue.plan(text, scan, root)
