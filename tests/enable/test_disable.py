# SPDX-License-Identifier: GPL-2.0-only
"""disable undoes what was enabled, and says what it changed and what it left."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import fake_modules
import journals
import pytest
from enabled import HALTPOLL, LOAD, OPTIONS, PARAMETERS, done, run, status
from scan_trees import plant

from lightsleep.enable.boot_files import HEADER
from lightsleep.settings import restorer

pytest_plugins = "enabled"


def test_disable_after_a_reboot(root: Path) -> None:
    before = fake_modules.snapshot(root)
    done("enable", "--persist", "lightsleep:fixed")
    for file in (root / "run/lightsleep").iterdir():
        file.unlink()  # as /run is after a boot; the module was loaded by modules-load.d
    found = status()
    assert (found["active"], found["at_boot"], found["enabled"]) == (True, True, None)
    done("disable")
    assert fake_modules.snapshot(root) == before


def test_the_module_does_not_come_back(root: Path) -> None:
    """A boot had loaded it, so the record says only that haltpoll took its place."""
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: menu haltpoll")
    before = fake_modules.snapshot(root)
    done("enable", "--persist")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    done("enable", "haltpoll")
    said = done("disable")
    assert "cpuidle_lightsleep" not in said.replace(LOAD, "")
    assert status()["active"] is False
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize("back", [False, True])
def test_a_driver_loaded_by_hand_that_stays_away_is_told(back: bool, root: Path) -> None:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: menu haltpoll")
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    done("enable", "haltpoll")
    if back:
        done("enable")
    stays = "note: cpuidle_lightsleep, which enable had unloaded, stays unloaded\n"
    assert (stays in done("disable")) is not back
    assert status()["active"] is False


def test_parameters_that_went_with_the_driver_are_no_news(root: Path) -> None:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: menu haltpoll")
    done("enable", "--persist")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    done("enable", "lightsleep:fixed")
    done("enable", "haltpoll")
    assert "nothing to set back" not in done("disable")


def test_a_file_of_an_earlier_boot_does_not_come_back(root: Path) -> None:
    before = fake_modules.snapshot(root)
    done("enable", "--persist", "lightsleep:fixed")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    done("enable", "--persist")
    assert not (root / OPTIONS).exists()
    done("disable")
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize("rebooted", [False, True])
def test_without_the_file_of_boots_nothing_else_has_an_effect(rebooted: bool, root: Path) -> None:
    """The machine may die when the driver goes."""
    done("enable", "--persist", "lightsleep:fixed")
    if rebooted:
        shutil.rmtree(root / "run/lightsleep")
    rmmod = root.parent / f"{root.name}-tools/rmmod"
    rmmod.write_text(f"#!/bin/sh\nls {root / LOAD} {root / OPTIONS} >{root}/found\nexit 1\n")
    assert run("disable").exit_code == 1
    assert (root / "found").read_text() == ""


def test_what_somebody_else_changed_is_named_with_an_error_too(root: Path) -> None:
    done("enable", "lightsleep+governor:ladder")
    governor = root / "sys/devices/system/cpu/cpuidle/current_governor"
    governor.write_text("teo\n")
    plant(root, f"{OPTIONS}: options cpuidle_lightsleep mode=off")  # not ours
    result = run("disable")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert f"/{OPTIONS} was not written by lightsleep" in said
    assert "current_governor was set to teo by somebody else meanwhile: left so" in said


@pytest.mark.parametrize("name", [LOAD, OPTIONS])
def test_what_a_crash_left_of_a_file_that_was_being_written_goes(name: str, root: Path) -> None:
    """The journal is gone with /run, so nothing else knows of it."""
    before = fake_modules.snapshot(root)
    scratch = restorer.scratch_of(root / name)
    scratch.parent.mkdir(parents=True, exist_ok=True)
    scratch.write_text(HEADER[:9])
    assert done("disable") == f"removed /{scratch.relative_to(root)}\n"
    assert fake_modules.snapshot(root) == before
    assert run("disable").exit_code == 4
    scratch.mkdir()
    refused = run("disable")
    assert refused.exit_code == 1
    assert f"cannot remove {scratch}: Is a directory" in " ".join(refused.output.split())


def test_a_file_that_cannot_be_removed(root: Path) -> None:
    done("enable", "--persist", "--later", "lightsleep")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    restorer.scratch_of(root / LOAD).mkdir()  # in the way, as a full or broken disk would be
    result = run("disable")
    assert result.exit_code == 1
    assert f"cannot remove {root / LOAD} again: Is a directory" in " ".join(result.output.split())


DISABLE = """
import sys
from pathlib import Path
from lightsleep.enable import undo
undo.disable(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ended_in_the_middle_it_is_finished(number: signal.Signals, root: Path) -> None:
    """The driver is half unloaded: what was there before is to come back all the same."""
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    before = fake_modules.snapshot(root)
    done("enable")
    plant(root, f"{LOAD}: {HEADER}")  # of an earlier boot
    plant(root, "slow: 1")
    program = (sys.executable, "-c", DISABLE, str(root))
    with subprocess.Popen(program, stderr=subprocess.DEVNULL) as process:
        while not (root / "started").exists():
            assert process.poll() is None, "it ended before the driver was unloaded"
            time.sleep(0.01)
        process.send_signal(number)
    fake_modules.wait_for_the_restorer(root)
    for name in ("slow", "started"):
        (root / name).unlink()
    assert fake_modules.snapshot(root) == before
    assert run("disable").exit_code == 4


def test_what_an_admin_set_again_is_left(root: Path) -> None:
    """It is a value that an earlier enable had set, and a later one had changed."""
    done("enable", "lightsleep+governor:ladder")
    done("enable", "governor:menu")
    governor = root / "sys/devices/system/cpu/cpuidle/current_governor"
    governor.write_text("ladder\n")
    said = " ".join(done("disable").split())
    assert "current_governor was set to ladder by somebody else" in said
    assert governor.read_text() == "ladder\n"


@pytest.mark.parametrize(
    ("loaded", "first", "setting"),
    [
        ("cpuidle_lightsleep", "menu", "governor:menu"),
        ("cpuidle_lightsleep", "menu", "haltpoll"),
        ("cpuidle_haltpoll", "menu", "governor:menu"),
        ("cpuidle_haltpoll", "menu", "haltpoll"),
        ("cpuidle_haltpoll", "haltpoll", "haltpoll"),
    ],
)
def test_what_an_admin_set_between_two_enables_comes_back(
    loaded: str, first: str, setting: str, root: Path
) -> None:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: ladder menu teo haltpoll")
    governor = root / "sys/devices/system/cpu/cpuidle/current_governor"
    subprocess.run(["modprobe", loaded], check=True)
    governor.write_text(f"{first}\n")
    done("enable", "lightsleep+governor:ladder")
    governor.write_text("teo\n")
    done("enable", setting)
    assert governor.read_text() == f"{setting.removeprefix('governor:')}\n"
    assert "by somebody else" not in done("disable")
    assert governor.read_text() == "teo\n"


def test_a_module_in_use(root: Path) -> None:
    done("enable", "--persist")
    plant(root, "busy: cpuidle_lightsleep")
    result = run("disable")
    assert result.exit_code == 1
    assert "in use" in result.output
    (root / "busy").unlink()
    done("disable")
    assert status()["active"] is False
    assert not (root / LOAD).exists()


def test_a_module_that_another_one_uses_is_complained_of_once(root: Path) -> None:
    done("enable", "lightsleep+governor:ladder")
    plant(root, "busy: cpuidle_lightsleep")
    holder = root / "sys/module/cpuidle_lightsleep/holders/virtio_poll_source"
    holder.mkdir(parents=True)
    result = run("disable")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "cpuidle_lightsleep stays loaded: virtio_poll_source uses it" in said
    assert "cannot unload" not in said
    assert "in use" not in said
    assert status()["active"] is True
    (root / "busy").unlink()
    holder.rmdir()
    done("disable")
    assert status()["active"] is False


def test_what_else_loads_the_driver_is_named_where_disable_fails_too(root: Path) -> None:
    done("enable", "--persist")
    plant(root, "etc/modules-load.d/virtio-poll-source.conf: virtio_poll_source")
    (root / "sys/module/cpuidle_lightsleep/holders/virtio_poll_source").mkdir(parents=True)
    result = run("disable", "--json")
    assert result.exit_code == 1
    named = "/etc/modules-load.d/virtio-poll-source.conf loads cpuidle_lightsleep at boot"
    assert [x.startswith(named) for x in json.loads(result.stdout)["notes"]] == [True]
    assert " ".join(result.stderr.split()).count(named) == 1


def test_in_a_container_the_machines_driver_stays(root: Path) -> None:
    done("enable", "--persist")
    shutil.rmtree(root / "run/lightsleep")  # of the machine, not of the container
    plant(root, ".dockerenv:")
    stays = "this is a container (docker), and all of the machine idles by it"
    assert f"note: cpuidle_lightsleep stays loaded: {stays}" in done("disable")
    assert (root / "sys/module/cpuidle_lightsleep").exists()
    assert not (root / "etc/modules-load.d/lightsleep.conf").exists()
    # Without a file to remove, it is the machine's driver that is meant.
    refused = run("disable")
    assert refused.exit_code == 1
    assert stays in refused.output


def test_haltpoll_makes_room_and_comes_back(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    before = fake_modules.snapshot(root)
    done("enable")
    assert status()["driver"] == "lightsleep"
    # What removes the packages looks for this.
    assert '"module": "cpuidle_lightsleep"' in (root / "run/lightsleep/kept").read_text()
    done("disable")
    after = fake_modules.snapshot(root)
    assert after == before
    for later in ([], ["--later"]):
        refused = run("enable", "--persist", *later)
        assert refused.exit_code == 1
        assert "write the line 'blacklist cpuidle_haltpoll' to a file" in refused.output


def test_haltpoll_that_could_not_come_back_stays(root: Path) -> None:
    """An upgrade may have removed the modules of the kernel that runs."""
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    (root / HALTPOLL).unlink()
    before = fake_modules.snapshot(root)
    refused = run("enable")
    assert refused.exit_code == 1
    said = " ".join(refused.output.split())
    assert "kernel 6.12.0 has no file of the module cpuidle-haltpoll" in said
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize("disabled", [False, True])
def test_what_goes_at_the_next_boot_need_not_come_back(disabled: bool, root: Path) -> None:
    """An upgrade has removed the modules of the kernel that runs; the new one has ours."""
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    plant(root, "etc/modprobe.d/no-haltpoll.conf: blacklist cpuidle_haltpoll")
    plant(root, "lib/modules/6.12.9/modules.builtin: kernel/x.ko")
    plant(root, "lib/modules/6.12.9/updates/dkms/cpuidle_lightsleep.ko: module")
    if disabled:
        plant(root, "sys/devices/system/cpu/cpu0/cpuidle/state1/name: haltpoll idle")
        plant(root, "sys/devices/system/cpu/cpu0/cpuidle/state1/disable: 1")
    else:
        shutil.rmtree(root / "lib/modules/6.12.0")
    why = "haltpoll idle is disabled" if disabled else "has no file of the module cpuidle-haltpoll"
    assert why in " ".join(run("enable", "--persist").output.split())
    done("enable", "--persist", "--later")
    assert (status()["driver"], status()["boot_setting"]) == ("haltpoll", "lightsleep")


@pytest.mark.parametrize("governor", ["haltpoll", "menu"])
def test_haltpoll_that_no_boot_loads_is_not_in_the_way(governor: str, root: Path) -> None:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: menu haltpoll")
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    plant(root, f"sys/devices/system/cpu/cpuidle/current_governor: {governor}")
    plant(root, "etc/modprobe.d/no-haltpoll.conf: blacklist cpuidle-haltpoll")
    before = fake_modules.snapshot(root)
    done("enable", "--persist", "--later")
    assert (status()["driver"], status()["boot_setting"]) == ("haltpoll", "lightsleep")
    done("enable", "lightsleep:off")
    assert status()["driver"] == "lightsleep"
    done("enable", "--persist")
    done("disable")
    assert fake_modules.snapshot(root) == before
    done("enable", "--persist")
    assert (status()["driver"], status()["at_boot"]) == ("lightsleep", True)


def test_haltpoll_that_comes_back_keeps_its_governor(root: Path) -> None:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: menu haltpoll")
    plant(root, "sys/devices/system/cpu/cpuidle/current_governor: menu")
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    before = fake_modules.snapshot(root)
    done("enable")
    done("enable", "haltpoll")
    assert status()["driver"] == "haltpoll"
    done("disable")
    assert fake_modules.snapshot(root) == before


LADDER_MENU = ["governor:ladder", "haltpoll", "governor:menu"]


@pytest.mark.parametrize(
    ("loaded", "found", "settings"),
    [
        ("cpuidle_haltpoll", "ladder", ["lightsleep"]),
        ("cpuidle_haltpoll", "menu", ["lightsleep+governor:ladder"]),
        ("cpuidle_haltpoll", "menu", ["lightsleep", "governor:ladder"]),
        ("cpuidle_lightsleep", "menu", ["governor:ladder", "haltpoll", "governor:menu"]),
        ("cpuidle_haltpoll", "teo", ["lightsleep", "haltpoll"]),
        ("cpuidle_haltpoll", "teo", ["lightsleep", "haltpoll", "governor:menu"]),
        ("cpuidle_haltpoll", "teo", ["lightsleep", "haltpoll+governor:menu"]),
        ("cpuidle_haltpoll", "teo", ["lightsleep", *LADDER_MENU]),
        ("cpuidle_haltpoll", "teo", ["lightsleep", "haltpoll", "lightsleep+governor:menu"]),
        (
            "cpuidle_haltpoll",
            "teo",
            ["lightsleep", "haltpoll", "lightsleep+governor:teo", *LADDER_MENU],
        ),
        ("cpuidle_haltpoll", "haltpoll", ["lightsleep", "governor:teo", "haltpoll"]),
        ("cpuidle_haltpoll", "haltpoll", ["lightsleep", "governor:teo", "haltpoll", "lightsleep"]),
        (
            "cpuidle_haltpoll",
            "haltpoll",
            ["lightsleep+governor:teo", "haltpoll", "governor:ladder"],
        ),
        (
            "cpuidle_haltpoll",
            "haltpoll",
            ["lightsleep", "governor:teo", "haltpoll+governor:ladder"],
        ),
        (
            "cpuidle_haltpoll",
            "haltpoll",
            ["governor:teo", "haltpoll", "lightsleep", "governor:teo"],
        ),
    ],
)
def test_the_governor_of_a_driver_that_comes_or_goes_is_nobody_elses_change(
    loaded: str, found: str, settings: list[str], root: Path
) -> None:
    """The kernel chooses haltpoll's when that comes, and the one before when it goes."""
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: ladder menu teo haltpoll")
    governor = root / "sys/devices/system/cpu/cpuidle/current_governor"
    subprocess.run(["modprobe", loaded], check=True)
    governor.write_text(f"{found}\n")
    for setting in settings:
        done("enable", setting)
    assert "by somebody else" not in done("disable")
    assert governor.read_text() == f"{found}\n"


@pytest.mark.parametrize(
    ("loaded", "setting"), [("cpuidle_haltpoll", "lightsleep"), ("cpuidle_lightsleep", "haltpoll")]
)
def test_a_governor_that_somebody_else_chose_stays_whatever_driver_comes_or_goes(
    loaded: str, setting: str, root: Path
) -> None:
    plant(root, "sys/devices/system/cpu/cpuidle/available_governors: ladder menu haltpoll")
    governor = root / "sys/devices/system/cpu/cpuidle/current_governor"
    governor.write_text("ladder\n")
    subprocess.run(["modprobe", loaded], check=True)
    governor.write_text("ladder\n")
    done("enable", setting)
    governor.write_text("menu\n")
    assert "current_governor was set to menu by somebody else meanwhile" in done("disable")
    assert governor.read_text() == "menu\n"


@pytest.mark.parametrize("damaged", [False, True])
def test_whatever_refuses_no_boot_loads_it(damaged: bool, root: Path) -> None:
    done("enable", "--persist", "--later")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    done("enable")
    if damaged:
        (root / "run/lightsleep/kept").write_text("[]\n")
    else:
        plant(root, "busy: cpuidle_lightsleep")
    result = run("disable")
    assert result.exit_code == 1
    assert f"removed /{LOAD}" in result.output
    assert not (root / LOAD).exists()


def test_a_driver_that_was_unloaded_is_in_the_way_of_the_next_boot(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    done("enable")
    refused = run("enable", "--persist")
    assert refused.exit_code == 1
    assert "no file unloads cpuidle_haltpoll at boot" in refused.output
    assert not (root / LOAD).exists()


def test_what_a_killed_command_left_is_undone_and_said(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
    load = "modprobe cpuidle_lightsleep"
    journals.leave(root, "try", {"module": "cpuidle_lightsleep", "old": None, "new": load})
    said = done("disable")
    assert "an earlier lightsleep try left settings changed: they are set back now" in said
    assert not (root / "sys/module/cpuidle_lightsleep").exists()
    assert run("disable").exit_code == 4


def test_what_goes_with_its_module_was_not_left(root: Path) -> None:
    done("enable")
    done("enable", "lightsleep:fixed:100us")
    (root / PARAMETERS / "mode").write_text("off\n")
    said = done("disable")
    assert "cpuidle_lightsleep unloaded" in said
    assert "left so" not in said
    assert "poll_limit_us" not in said


def test_a_file_that_was_edited_goes_and_nothing_says_otherwise(root: Path) -> None:
    done("enable", "lightsleep:fixed:100us", "--persist")
    with (root / OPTIONS).open("a") as file:
        file.write("# by hand\n")
    said = done("disable")
    assert f"removed /{OPTIONS}" in said
    assert "left so" not in said
    assert not (root / OPTIONS).exists()


def test_only_what_disable_did_is_said(root: Path) -> None:
    done("enable")
    subprocess.run(["rmmod", "cpuidle_lightsleep"], check=True)
    said = done("disable")
    assert said.splitlines() == ["undid lightsleep enable lightsleep"]
