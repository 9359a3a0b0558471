# SPDX-License-Identifier: GPL-2.0-only
"""enable on machines in a folder, with modules that only seem to be loaded, and its way back."""

import json
import os
import stat
import struct
import subprocess
from pathlib import Path

import fake_modules
import journals
import pytest
from enabled import CHANGED, LOAD, MODULE, OPTIONS, PARAMETERS, done, mode, run, status
from scan_trees import plant, unfold

from lightsleep.enable.boot_files import HEADER

pytest_plugins = "enabled"


def test_json_says_what_was_changed(root: Path) -> None:
    enabled = json.loads(run("enable", "--json").stdout)
    CHANGED.validate(enabled)
    assert "modprobe cpuidle_lightsleep" in enabled["changed"][0]
    disabled = json.loads(run("disable", "--json").stdout)
    CHANGED.validate(disabled)
    assert disabled["changed"]
    assert disabled["error"] is None


def test_json_says_why_nothing_was_changed(root: Path) -> None:
    done("enable")
    for status_wanted, error, words in (
        (4, "lightsleep is enabled already: nothing to do", ["enable"]),
        (1, "is loaded already", ["enable", "lightsleep:off", "--module", f"{root / MODULE}"]),
    ):
        result = run(*words, "--json")
        document = json.loads(result.stdout)
        CHANGED.validate(document)
        assert (result.exit_code, document["changed"]) == (status_wanted, [])
        assert error in document["error"]
        assert document["error"] in result.stderr
    done("disable")
    result = run("disable", "--json")
    assert result.exit_code == 4
    assert "not enabled" in json.loads(result.stdout)["error"]


def test_json_says_what_a_failed_disable_changed(root: Path) -> None:
    done("enable", "--persist", "lightsleep:off")
    plant(root, f"{LOAD}: cpuidle_lightsleep")  # no longer ours
    result = run("disable", "--json")
    document = json.loads(result.stdout)
    CHANGED.validate(document)
    assert result.exit_code == 1
    assert "undid lightsleep enable lightsleep:off" in document["changed"]
    assert f"removed /{OPTIONS}" in document["changed"]
    assert document["error"].startswith(f"/{LOAD} was not written by lightsleep")
    assert all(x in document["error"] for x in [*document["changed"], *document["notes"]])


def test_enable_until_the_next_boot(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fake_modules.snapshot(root)
    monkeypatch.setenv("SUDO_USER", "alice")
    said = done("enable")
    assert "modprobe cpuidle_lightsleep" in said
    assert "lightsleep disable" in said
    found = status()
    assert (found["active"], found["at_boot"]) == (True, False)
    assert (found["enabled"], found["by"]) == ("lightsleep", "alice")
    assert not (root / "etc").exists()
    assert "undid lightsleep enable" in done("disable")
    assert fake_modules.snapshot(root) == before


def test_enable_at_every_boot(root: Path) -> None:
    before = fake_modules.snapshot(root)
    said = done("enable", "lightsleep:fixed:100us", "--persist")
    assert f"wrote /{OPTIONS}" in said
    assert f"wrote /{LOAD}" in said
    assert mode(root) == "fixed"
    header, options = (root / OPTIONS).read_text().splitlines()
    assert header == HEADER
    assert options == "options cpuidle_lightsleep mode=fixed poll_limit_us=100"
    assert (root / LOAD).read_text().splitlines()[1:] == ["cpuidle_lightsleep"]
    assert status()["at_boot"] is True
    done("disable")
    assert fake_modules.snapshot(root) == before


def test_lines_that_somebody_added_to_our_files_are_told(root: Path) -> None:
    def add(name: str, line: str) -> None:
        with (root / name).open("a") as file:
            file.write(f"{line}\n")

    done("enable", "--persist", "lightsleep:fixed:100us")
    add(OPTIONS, "options kvm halt_poll_ns=0")
    said = done("enable", "--persist", "lightsleep:fixed:50us")
    assert f"/{OPTIONS} held lines that" in said
    assert "are gone: options kvm halt_poll_ns=0\n" in said
    assert "held lines" not in done("enable", "--persist", "lightsleep:fixed:20us")
    add(OPTIONS, "options cpuidle_lightsleep hold_us=5000")
    said = done("enable", "--persist", "lightsleep:fixed:10us")
    assert "are gone: options cpuidle_lightsleep hold_us=5000\n" in said
    (root / OPTIONS).write_text((root / OPTIONS).read_text().rstrip() + " hold_us=5000\n")
    ours = "options cpuidle_lightsleep mode=fixed poll_limit_us=10"
    assert f"are gone: {ours} hold_us=5000\n" in done("enable", "--persist", "lightsleep:off")
    add(LOAD, "# mine")
    said = done("disable")
    assert f"/{LOAD} held lines that lightsleep did not write; they are gone: # mine" in said


def test_the_defaults_need_no_options_file(root: Path) -> None:
    done("enable", "--persist", "lightsleep:adaptive")
    assert not (root / OPTIONS).exists()
    done("enable", "--persist", "lightsleep:off")
    assert (root / OPTIONS).exists()
    done("enable", "--persist")
    assert not (root / OPTIONS).exists()
    assert mode(root) == "adaptive"


def test_a_latency_limit_is_told_before_the_driver_heeds_it(root: Path) -> None:
    def latency_limit(us: int) -> None:
        (root / "dev").mkdir(exist_ok=True)
        (root / "dev/cpu_dma_latency").write_bytes(struct.pack("=i", us))

    latency_limit(3)
    told = "CPU 0-1: a latency limit of 3 us is set"
    assert told in done("enable")
    assert "latency limit" not in done("enable", "lightsleep:fixed:20us")  # heeded already
    done("disable")
    assert "latency limit" not in done("enable", "lightsleep:off")
    assert told in done("enable")  # switched on: it was off, and heeded none
    assert "latency limit" not in done("enable", "lightsleep:off")
    done("disable")
    assert told in done("enable", "--persist", "--later")
    done("disable")
    latency_limit(2_000_000_000)
    assert "latency limit" not in done("enable")


def test_only_from_the_next_boot_on(root: Path) -> None:
    done("enable", "--persist", "--later")
    found = status()
    assert (found["active"], found["at_boot"]) == (False, True)
    assert run("enable", "--later").exit_code == 2


def test_what_a_killed_command_left_is_set_back_before_anything_is_planned(root: Path) -> None:
    """The module that a killed try had loaded goes: enable is to load it, not to set its mode."""
    subprocess.run(["modprobe", "cpuidle_lightsleep", "mode=off"], check=True)
    load = "modprobe cpuidle_lightsleep mode=off"
    journals.leave(root, "try", {"module": "cpuidle_lightsleep", "old": None, "new": load})
    said = done("enable", "lightsleep:fixed")
    assert "an earlier lightsleep try left settings changed: they are set back now" in said
    assert "loaded the module" in said
    assert mode(root) == "fixed"


def with_haltpoll(root: Path) -> Path:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: menu haltpoll")
    return root


def test_what_lightsleep_was_set_to_is_set_again_where_it_is_loaded_again(root: Path) -> None:
    plant(with_haltpoll(root), "refused: cpuidle_haltpoll")
    settings = ("mode=fixed", "poll_limit_us=0", "wait_weight=20", "peek_budget_ns=9000")
    subprocess.run(["modprobe", "cpuidle_lightsleep", *settings, "hold_us=50"], check=True)
    before = fake_modules.snapshot(root)
    result = run("enable", "haltpoll")
    assert result.exit_code == 1
    assert "refused: Key was rejected by service" in result.output
    assert fake_modules.snapshot(root) == before


def test_a_driver_that_a_module_uses_cannot_make_room(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    (with_haltpoll(root) / "sys/module/cpuidle_lightsleep/holders/virtio_poll_source").mkdir(
        parents=True
    )
    result = run("enable", "haltpoll")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "haltpoll cannot be set here: virtio_poll_source uses cpuidle_lightsleep" in said
    assert "rmmod virtio_poll_source" in said
    assert status()["active"] is True


def test_nothing_to_do(root: Path) -> None:
    assert run("disable").exit_code == 4
    done("enable")
    assert run("enable").exit_code == 4
    done("disable")
    assert run("disable").exit_code == 4
    assert run("status").exit_code == 4


def test_a_module_that_was_loaded_by_hand(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    assert "not by lightsleep enable" in run("status").output
    done("enable", "lightsleep:fixed:50us")
    assert mode(root) == "fixed"
    assert "unloaded the module" in done("disable")
    assert status()["active"] is False


def test_files_of_somebody_else_stay(root: Path) -> None:
    plant(root, f"{OPTIONS}: options cpuidle_lightsleep mode=off")
    result = run("enable", "--persist")
    assert result.exit_code == 1
    assert f"/{OPTIONS} is there and was not written by lightsleep" in result.output
    done("enable")
    result = run("disable")
    assert result.exit_code == 1
    assert "not written by lightsleep: left" in result.output
    assert (root / OPTIONS).read_text() == "options cpuidle_lightsleep mode=off\n"
    assert status()["active"] is False


def test_folders_that_it_makes_are_everybodys_to_read(root: Path) -> None:
    umask = os.umask(0o077)
    try:
        done("enable", "lightsleep:off", "--persist", "--later")
    finally:
        os.umask(umask)
    for name in (OPTIONS, LOAD):
        assert stat.S_IMODE((root / name).parent.stat().st_mode) == 0o755
        assert stat.S_IMODE((root / name).stat().st_mode) == 0o644


@pytest.mark.parametrize("name", [OPTIONS, LOAD])
def test_a_pipe_of_somebody_else_is_not_waited_for(name: str, root: Path) -> None:
    (root / name).parent.mkdir(parents=True)
    os.mkfifo(root / name)
    assert status()["files"] == []
    assert f"/{name} is there and was not" in run("enable", "--persist").output
    refused = run("disable")
    assert refused.exit_code == 1
    assert f"/{name} was not written by lightsleep: left" in refused.output
    assert (root / name).is_fifo()


@pytest.mark.parametrize("name", [OPTIONS, LOAD])
@pytest.mark.parametrize("target", ["gone", "ours.conf"])
def test_links_of_somebody_else_stay(name: str, target: str, root: Path) -> None:
    plant(root, f"{name.rpartition('/')[0]}/ours.conf: {HEADER}")
    (root / name).symlink_to(target)
    before = fake_modules.snapshot(root)
    refused = run("enable", "--persist")
    assert refused.exit_code == 1
    assert f"/{name} is there and was not written by lightsleep" in refused.output
    refused = run("disable")
    assert refused.exit_code == 1
    assert f"/{name} was not written by lightsleep: left" in refused.output
    assert fake_modules.snapshot(root) == before
    assert (root / name).readlink() == Path(target)


def test_a_second_setting_leaves_nothing_of_the_first(root: Path) -> None:
    before = fake_modules.snapshot(root)
    done("enable", "lightsleep:fixed:100us:weight=20", "--persist")
    said = done("enable", "lightsleep", "--persist")
    parameters = {x.name: x.read_text().strip() for x in (root / PARAMETERS).iterdir()}
    assert (parameters["mode"], parameters["poll_limit_us"]) == ("adaptive", "0")
    assert parameters["wait_weight"] == "4"
    assert not (root / OPTIONS).exists()
    assert "wait_weight to 4" in said
    done("disable")
    assert fake_modules.snapshot(root) == before


CPU = "sys/devices/system/cpu"


def disabled(root: Path) -> set[str]:
    """Return the idle states that any CPU has disabled."""
    files = (root / CPU).glob("cpu*/cpuidle/state*/disable")
    return {(x.parent / "name").read_text().strip() for x in files if x.read_text() == "1\n"}


def test_a_second_setting_that_forbids_less_gives_states_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("intel-laptop", tmp_path / "laptop")
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.enable.cli.need_root", lambda _: None)
    plant(root, f"{CPU}/cpu7/cpuidle/state2/disable: 1")  # C1E, by somebody else
    before = fake_modules.snapshot(root)
    done("enable", "no-deeper-than:C1")
    assert disabled(root) == {"C1E", "C6", "C8", "C10"}
    said = done("enable", "no-deeper-than:C6")
    assert f"set /{CPU}/cpu0/cpuidle/state3/disable to 0" in said
    assert disabled(root) == {"C1E", "C8", "C10"}
    assert run("enable", "no-deeper-than:C6").exit_code == 4
    done("enable", "no-deeper-than:C1")
    assert disabled(root) == {"C1E", "C6", "C8", "C10"}
    done("disable")
    assert fake_modules.snapshot(root) == before


def test_what_was_set_so_already_is_no_change(root: Path) -> None:
    done("enable", "lightsleep:fixed:100us")
    said = done("enable", "lightsleep:fixed:200us")
    assert "poll_limit_us to 200" in said
    assert "mode" not in said


@pytest.mark.parametrize("content", ["", "garbage\n", "[]\n", "{}\n"])
def test_a_damaged_record(content: str, root: Path) -> None:
    plant(root, "run/lightsleep/kept: x")
    (root / "run/lightsleep/kept").write_text(content)
    for verb in ("status", "disable"):
        result = run(verb)
        assert result.exit_code in (1, 4)
        assert "Traceback" not in result.output
