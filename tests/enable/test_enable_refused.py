# SPDX-License-Identifier: GPL-2.0-only
"""What enable refuses, before it changes anything, and what it says then."""

import json
import subprocess
from pathlib import Path
from typing import Any

import fake_modules
import pytest
from enabled import CHANGED, LOAD, MODULE, PARAMETERS, done, mode, run, status
from scan_trees import plant, set_secure_boot

from lightsleep.settings import catalogue

pytest_plugins = "enabled"


@pytest.mark.parametrize("secure_boot", [None, False, True])
def test_a_refused_module_leaves_nothing(secure_boot: bool | None, root: Path) -> None:
    if secure_boot is not None:
        set_secure_boot(root, secure_boot)
    before = fake_modules.snapshot(root)
    plant(root, "refused: cpuidle_lightsleep")
    result = run("enable", "--persist")
    assert result.exit_code == 1
    assert "Key was rejected" in result.output
    said = " ".join(result.output.split())
    assert ("mokutil --import" in said) == (secure_boot is not False)
    assert ("Remove module.sig_enforce" in said) != bool(secure_boot)
    (root / "refused").unlink()
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize("locked", ["[none] integrity", "none [integrity]"])
def test_a_kernel_that_is_locked_down_does_not_speak_of_keys(locked: str, root: Path) -> None:
    plant(root, f"denied: cpuidle_lightsleep\n{MODULE}: ~Module signature appended~")
    plant(root, f"sys/kernel/security/lockdown: {locked} confidentiality")
    set_secure_boot(root, on=True)
    result = run("enable")
    assert result.exit_code == 1
    assert "Operation not permitted" in result.output
    assert ("mokutil --import" in result.output) == ("[integrity]" in locked)


def test_a_file_that_cannot_be_written(root: Path) -> None:
    plant(root, "etc/modules-load.d: in the way")
    before = fake_modules.snapshot(root)
    result = run("enable", "--persist")
    assert result.exit_code == 1
    assert f"cannot write {root / LOAD}: Not a directory" in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


def test_a_file_that_cannot_be_read(root: Path) -> None:
    (root / LOAD).mkdir(parents=True)
    for words in (["enable", "--persist"], ["status"], ["disable"]):
        result = run(*words)
        assert result.exit_code == 1
        assert f"cannot read /{LOAD}: Is a directory" in " ".join(result.output.split())


SIGNED = (
    f"{MODULE}: ~Module signature appended~\nsys/module/module/parameters/sig_enforce: Y\n"
    "var/lib/dkms/mok.pub: KEY\nsys/firmware/efi/mok-variables/MokListRT: OTHER"
)

# What is planted -> why it cannot work, and what to do.
CANNOT = {
    "sys/devices/system/cpu/cpuidle/current_driver: odd_idle": (
        "driver odd_idle is bound",
        "Unload odd_idle",
    ),
    "proc/cmdline: idle=poll": ("decides how CPUs idle", "Remove idle=poll"),
    "proc/cmdline: cpuidle.off=1": ("cpuidle is switched off", "Remove cpuidle.off"),
    ".dockerenv:": ("container (docker)", "on the host of the container"),
    "proc/sys/kernel/modules_disabled: 1": ("modules_disabled is 1", "Only a reboot resets it"),
    "sys/module/module/parameters/sig_enforce: Y": (
        "is not signed",
        "Under Secure Boot: Have DKMS build it",
        "Without it: Remove module.sig_enforce and lockdown= from the kernel command line",
    ),
}
NOT_INSTALLED = {
    "lib/modules/6.12.0/build/Makefile: all": (
        "is not installed for kernel 6.12.0",
        "Install the package lightsleep-dkms",
    ),
    "lib/modules/6.12.0/modules.dep: x": (
        "neither are the headers",
        "Install linux-headers-6.12.0",
    ),
}


@pytest.mark.parametrize("planted", [*CANNOT, *NOT_INSTALLED])
def test_where_it_cannot_work(planted: str, root: Path) -> None:
    if planted in NOT_INSTALLED:
        (root / MODULE).unlink()
    plant(root, planted)
    before = fake_modules.snapshot(root)
    for words in (["enable"], ["status"]):
        result = run(*words)
        assert result.exit_code == (1 if words == ["enable"] else 4)
        for said in (CANNOT | NOT_INSTALLED)[planted]:
            assert said in " ".join(result.output.split())
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("planted", "fix"),
    [
        ("proc/cmdline: idle=poll", "Remove idle=poll from the kernel command line"),
        ("proc/cmdline: cpuidle.off=1", "Remove cpuidle.off"),
        ("proc/cmdline: module_blacklist=cpuidle_lightsleep", "Remove cpuidle_lightsleep from"),
    ],
)
def test_what_this_boot_alone_may_have_is_told_where_the_next_one_counts(
    planted: str, fix: str, root: Path
) -> None:
    """A reboot into another configuration may be pending."""
    plant(root, planted)
    assert run("enable", "--persist").exit_code == 1
    said = " ".join(done("enable", "--persist", "--later").split())
    assert "note: the next boot loads cpuidle_lightsleep only if it is without this: " in said
    assert fix in said
    assert (root / LOAD).exists()
    again = run("enable", "--persist", "--later")
    assert again.exit_code == 4
    assert fix in " ".join(again.output.split())
    done("disable")


def test_a_boot_loads_it_before_the_loading_of_modules_is_switched_off(root: Path) -> None:
    """Who hardens a machine by sysctl.d need not take that away."""
    plant(root, "proc/sys/kernel/modules_disabled: 1")
    refused = run("enable", "--persist")
    assert refused.exit_code == 1
    assert "Only a reboot resets it" in " ".join(refused.output.split())
    said = " ".join(done("enable", "--persist", "--later").split())
    assert (
        "note: kernel.modules_disabled is 1 now. systemd sets that from sysctl.d only after it "
        "has loaded cpuidle_lightsleep. If something sets it earlier, such as the kernel command "
        "line, the next boot does not load the module"
    ) in said
    assert "only if it is without this" not in said
    assert (root / LOAD).exists()


def test_the_next_boot_may_have_another_blacklist_on_its_command_line(root: Path) -> None:
    plant(root, "proc/cmdline: modprobe.blacklist=cpuidle_lightsleep")
    refused = run("enable", "--persist")
    assert refused.exit_code == 1
    assert "Or leave out --persist" in " ".join(refused.output.split())
    told = (
        "note: the next boot loads cpuidle_lightsleep only if it is without this: "
        "modprobe.blacklist= on the kernel command line keeps a boot from loading "
    )
    for loaded in (False, True):  # what somebody loads by name is not kept away by it
        if loaded:
            done("enable")
        assert told in " ".join(done("enable", "--persist", "--later").split())
        assert (root / LOAD).exists()
        done("disable")


@pytest.mark.parametrize("haltpoll", [False, True])
def test_what_cannot_be_done_with_later_is_not_proposed(haltpoll: bool, root: Path) -> None:
    if haltpoll:
        subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    else:
        plant(root, "etc/modprobe.d/no.conf: blacklist cpuidle_lightsleep")
    for words, proposed in (([], True), (["--later"], False)):
        refused = run("enable", "--persist", *words)
        assert refused.exit_code == 1
        said = " ".join(refused.output.split())
        assert "and repeat this command" in said
        assert ("leave out --persist" in said) == proposed


def test_what_is_loaded_already_changes_whatever_modprobe_would_run(root: Path) -> None:
    done("enable")
    plant(root, "etc/modprobe.d/x.conf: install cpuidle_lightsleep /bin/false")
    refused = run("enable", "--persist", "lightsleep:fixed")
    assert refused.exit_code == 1
    assert "Or leave out --persist" in " ".join(refused.output.split())
    done("enable", "lightsleep:fixed")
    assert mode(root) == "fixed"


@pytest.mark.parametrize(
    ("command", "why"),
    [("/bin/false", "Error running install command '/bin/false'"), ("/bin/true", "succeeded, but")],
)
def test_what_modprobe_replaces_is_not_loaded_now_either(
    command: str, why: str, root: Path
) -> None:
    plant(root, f"etc/modprobe.d/x.conf: install cpuidle_lightsleep {command}")
    plant(root, f"{MODULE}: ~Module signature appended~")
    plant(root, "sys/kernel/security/lockdown: none [integrity] confidentiality")
    set_secure_boot(root, on=True)
    before = fake_modules.snapshot(root)
    said = " ".join(run("enable", "--persist").output.split())
    assert "a line in /etc/modprobe.d/x.conf keeps a boot from loading" in said
    assert "and repeat this command" in said
    assert "leave out --persist" not in said
    refused = run("enable")
    assert refused.exit_code == 1
    said = " ".join(refused.output.split())
    assert why in said
    assert "modprobe --showconfig | grep cpuidle_lightsleep" in said
    assert "mokutil" not in said
    assert fake_modules.snapshot(root) == before


def test_the_next_boot_may_be_of_a_kernel_that_has_the_module(root: Path) -> None:
    """The headers of an older kernel, which still runs, may no longer be on offer."""
    (root / MODULE).unlink()
    plant(root, "lib/modules/6.12.0/modules.builtin: kernel/x.ko")
    plant(root, "lib/modules/6.12.9/modules.builtin: kernel/x.ko")
    words = ["enable", "--persist", "--later"]
    refused = run(*words)
    assert refused.exit_code == 1
    assert "is not installed for kernel 6.12.0" in " ".join(refused.output.split())
    plant(root, f"{MODULE.replace('6.12.0', '6.12.9')}: module")
    assert run("enable", "--persist").exit_code == 1
    said = done(*words)
    assert "a boot of 6.12.0 does not load cpuidle_lightsleep: it is not installed there" in said
    assert (root / LOAD).exists()


@pytest.mark.parametrize("driver", ["intel_idle", "odd_idle"])
def test_another_driver_is_in_the_way_of_the_next_boot_too(driver: str, root: Path) -> None:
    plant(root, f"sys/devices/system/cpu/cpuidle/current_driver: {driver}")
    refused = run("enable", "--persist", "--later")
    assert refused.exit_code == 1
    assert f"the cpuidle driver {driver} is bound" in refused.output
    assert not (root / LOAD).exists()


def test_whose_key_is_accepted_the_kernel_decides(root: Path) -> None:
    """DKMS may sign with another key than the one that is found."""
    plant(root, SIGNED)
    set_secure_boot(root, on=True)
    plant(root, "refused: cpuidle_lightsleep")
    for words in (["enable"], ["status"]):
        said = " ".join(run(*words).output.split())
        assert "mokutil --import /var/lib/dkms/mok.pub" in said
        assert ("Key was rejected" if words == ["enable"] else "seems not to be enrolled") in said
    (root / "refused").unlink()
    done("enable")


def test_a_file_is_signed_or_refused_where_that_is_asked_for(root: Path, tmp_path: Path) -> None:
    plant(root, "sys/module/module/parameters/sig_enforce: Y")
    file = tmp_path / "cpuidle_lightsleep.ko"
    file.write_bytes(b"ELF")
    refused = run("enable", "--module", str(file))
    assert refused.exit_code == 1
    assert f"{file} is not signed" in " ".join(refused.output.split())
    file.write_bytes(b"ELF~Module signature appended~\n")
    done("enable", "--module", str(file))


@pytest.mark.parametrize("persist", [False, True])
def test_who_was_overtaken_does_not_claim_success(
    persist: bool, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another command loads the module after this one has made its plan."""

    def overtaken(*words: Any) -> list[catalogue.Change]:
        changes = catalogue.plan(*words)
        subprocess.run(["modprobe", "cpuidle_lightsleep"], check=True)
        return changes

    monkeypatch.setattr("lightsleep.enable.change.plan", overtaken)
    result = run("enable", "lightsleep:fixed:100us", *(["--persist"] if persist else []))
    assert result.exit_code == 1
    assert "somebody else has loaded cpuidle_lightsleep meanwhile" in result.output
    assert not (root / LOAD).exists()
    assert (root / PARAMETERS / "mode").read_text() == "adaptive\n"


def test_a_file_is_of_no_use_to_another_setting(root: Path) -> None:
    file = plant(root, "home/cpuidle_lightsleep.ko: module") / "home/cpuidle_lightsleep.ko"
    refused = run("enable", "governor:menu", "--module", str(file), "--json")
    assert refused.exit_code == 2
    said = "--module loads lightsleep, which is no part of governor:menu"
    assert said in refused.stderr
    assert said in json.loads(refused.stdout)["error"]


@pytest.mark.parametrize("name", ["mine.ko", "cpuidle_lightsleep-new.ko"])
def test_a_file_has_the_name_of_the_module(name: str, root: Path) -> None:
    file = plant(root, f"home/{name}: module") / "home" / name
    refused = run("enable", "--module", str(file))
    assert refused.exit_code == 2
    assert f"{file} has to be called cpuidle_lightsleep.ko" in " ".join(refused.output.split())
    packed = file.with_name("cpuidle_lightsleep.ko.xz")
    file.rename(packed)
    catalogue.check_module(packed, ["lightsleep"])


def test_a_file_takes_no_place_of_a_module_that_is_loaded(root: Path) -> None:
    done("enable")
    file = plant(root, "home/cpuidle_lightsleep.ko: module") / "home/cpuidle_lightsleep.ko"
    for setting in ("lightsleep", "lightsleep:off"):
        refused = run("enable", setting, "--module", str(file))
        assert refused.exit_code != 0
        assert "is loaded already; run lightsleep disable first" in refused.output
    assert mode(root) == "adaptive"


def test_the_module_must_be_installed_to_last(root: Path) -> None:
    (root / MODULE).unlink()
    file = plant(root, "home/cpuidle_lightsleep.ko: module") / "home/cpuidle_lightsleep.ko"
    assert "is not installed" in run("enable").output
    done("enable", "--module", str(file))
    assert status()["active"] is True
    result = run("enable", "--persist")
    assert result.exit_code == 1
    assert "no boot would find it" in " ".join(result.output.split())
    done("disable")


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            "lightsleep:fixed:100us",
            "only: add cpuidle_lightsleep.mode=fixed cpuidle_lightsleep.poll_limit_us=100 to it",
        ),
        ("lightsleep", "only: none is needed here."),
    ],
)
@pytest.mark.parametrize("later", [[], ["--later"]])
def test_no_file_sets_the_parameters_of_a_driver_that_is_built_in(
    setting: str, said: str, later: list[str], root: Path
) -> None:
    done("enable")
    (root / "sys/module/cpuidle_lightsleep/initstate").unlink()
    (root / "run/lightsleep/kept").unlink()
    before = fake_modules.snapshot(root)
    refused = run("enable", setting, "--persist", *later)
    assert refused.exit_code == 2
    assert said in " ".join(refused.output.split())
    assert fake_modules.snapshot(root) == before
    done("enable", "lightsleep:off")
    assert mode(root) == "off"


@pytest.mark.parametrize(
    "setting",
    [
        *("as-is", "qos:10us", "nonsense", "", "lightsleep:fast", "lightsleep:0us"),
        *("lightsleep:10001us", "lightsleep:1us:2us", "lightsleep:fixed:off", "lightsleep:-1us"),
        *("lightsleep:weight=0", "lightsleep:weight=101", "lightsleep:weight="),
        *("lightsleep:weight", "lightsleep:weight=2:weight=3", "lightsleep:weight=1.5"),
        "lightsleep:wait=2",
        *("lightsleep+lightsleep", "lightsleep+haltpoll", "as-is+lightsleep", "+", "lightsleep+"),
        *("sysfs:/etc/passwd=x", "sysfs:sys=1", "sysfs:/sys/../etc/passwd=1", "governor"),
        *("lightsleep:1us;reboot", "governor:$(reboot)"),
    ],
)
def test_what_is_no_setting_to_keep(setting: str, root: Path) -> None:
    before = fake_modules.snapshot(root)
    result = run("enable", "--", setting)
    assert result.exit_code in (1, 2)
    assert "Error: " in result.output
    assert fake_modules.snapshot(root) == before


def test_what_enable_refuses_is_not_among_the_settings_that_it_names(root: Path) -> None:
    said = " ".join(run("enable", "foo").output.split())
    assert "there are: lightsleep, lightsleep:fixed:100us, haltpoll," in said
    assert "qos:" not in said
    assert "as-is" not in said


def test_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for verb in ("enable", "disable"):
        result = run(verb, "--json")
        assert result.exit_code == 1
        assert "sudo" in result.stderr
        document = json.loads(result.stdout)
        CHANGED.validate(document)
        assert "run it as root" in document["error"]
