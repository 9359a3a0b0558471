# SPDX-License-Identifier: GPL-2.0-only
"""enable, disable and status on machines in a folder, with modules that only seem to be loaded."""

import errno
import json
import os
import stat
import struct
import subprocess
from pathlib import Path
from typing import Any

import fake_modules
import journals
import pytest
from enabled import CHANGED, LOAD, MODULE, OPTIONS, PARAMETERS, done, mode, run, status
from scan_trees import plant, unfold

from lightsleep.enable.boot_files import HEADER
from lightsleep.settings import catalogue, journalled, restorer

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


def test_status_says_who_may_read_a_record_that_others_may_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("enable")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(restorer, "read", denied)
    result = run("status")
    assert result.exit_code == 1
    assert "only root may; use sudo" in " ".join(result.output.split())
    assert "remove it" not in result.output


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


def test_status_tells_of_a_session_that_runs_or_was_killed(root: Path) -> None:
    assert status()["unfinished"] is None
    with journalled.session(root, "try") as session:
        session.set(root / catalogue.GOVERNOR, "haltpoll")
        assert f"lightsleep try, process {os.getpid()}," in status()["unfinished"]
        left = (root / journalled.RUN_DIR / "journal").read_text()
    assert status()["unfinished"] is None
    (root / journalled.RUN_DIR / "journal").write_text(left)
    assert "an earlier command has not set back what it changed" in status()["unfinished"]
    run("disable")
    assert status()["unfinished"] is None


def test_status_says_what_only_root_may_know(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(root, f"{journalled.RUN_DIR}/journal: {{}}")

    def denied(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    assert "sudo lightsleep status says which" in (journalled.unfinished(root) or "")


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


def test_a_refused_module_leaves_nothing(root: Path) -> None:
    before = fake_modules.snapshot(root)
    plant(root, "refused: cpuidle_lightsleep")
    result = run("enable", "--persist")
    assert result.exit_code == 1
    assert "Key was rejected" in result.output
    assert "mokutil --import" in result.output
    (root / "refused").unlink()
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize("locked", ["[none] integrity", "none [integrity]"])
def test_a_kernel_that_is_locked_down_does_not_speak_of_keys(locked: str, root: Path) -> None:
    plant(root, f"denied: cpuidle_lightsleep\n{MODULE}: ~Module signature appended~")
    plant(root, f"sys/kernel/security/lockdown: {locked} confidentiality")
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
    "sys/module/module/parameters/sig_enforce: Y": ("is not signed", "dkms-install", "--import"),
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


def test_status_does_not_take_an_unknown_cost_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(unfold("lightsleep-guest", tmp_path), f"{PARAMETERS}/halt_cost_ns: 0")
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", tmp_path)
    assert "0 ns (nothing measured" in done("status")


def test_status_shows_each_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", unfold("lightsleep-guest", tmp_path))
    text = done("status")
    assert status()["pays"]["verdict"] == "pays"
    assert text.count("70.0%") == 4
    assert "It pays" in text


def test_status_counts_wakeups_without_an_interrupt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of cpu1's 90 polls that saw a wakeup, an interrupt may have ended 30."""
    root = unfold("lightsleep-guest", tmp_path)
    header = "           CPU0 CPU1 CPU2 CPU3"

    def look(_: float) -> None:
        now_s[0] += 0.5
        count = int(now_s[0] * 2)
        plant(root, f"{cpu1}/lightsleep/stat: 0 {90 * count} 0 0 0 0 0 {count} 0 0 0")
        rows = (header, f"LOC: 1 {30 * count} 1 1 timer", "RES: 0 0 0 0 Rescheduling")
        plant(root, "\n".join(f"proc/interrupts: {row}" for row in rows))

    now_s, cpu1 = [100.0], "sys/devices/system/cpu/cpu1"
    look(0)
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    monkeypatch.setattr("lightsleep.watch.reading.time.monotonic", lambda: now_s[0])
    monkeypatch.setattr("lightsleep.enable.status.time.sleep", look)
    assert [x["stores_per_s"] for x in status()["cpus"]] == [0, 120, 0, 0]
    lines = done("status").splitlines()
    (row,) = [line for line in lines if line.split()[:1] == ["1"]]
    (titles,) = [line for line in lines if "store/s" in line]
    assert "120" in row[titles.index("store/s") - 1 : titles.index("store/s") + 7]


@pytest.mark.parametrize("content", ["", "garbage\n", "[]\n", "{}\n"])
def test_a_damaged_record(content: str, root: Path) -> None:
    plant(root, "run/lightsleep/kept: x")
    (root / "run/lightsleep/kept").write_text(content)
    for verb in ("status", "disable"):
        result = run(verb)
        assert result.exit_code in (1, 4)
        assert "Traceback" not in result.output
