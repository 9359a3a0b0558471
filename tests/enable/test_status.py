# SPDX-License-Identifier: GPL-2.0-only
"""What status says of what is enabled, now and at the next boot, and of what did not come."""

import errno
import lzma
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import fake_modules
import pytest
from enabled import LOAD, MODULE, PARAMETERS, done, run, status
from scan_trees import plant, unfold

from lightsleep.enable import change
from lightsleep.scan.collect import collect
from lightsleep.scan.loading import BUILD_NOTE, SIGNED
from lightsleep.scan.model import Scan
from lightsleep.scan.tree import Tree
from lightsleep.settings import catalogue, journalled, restorer

pytest_plugins = "enabled"


@pytest.fixture
def as_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status reads a machine whose modules only root may load."""

    def collected(root: Path) -> tuple[Scan, Tree]:
        scan, tree = collect(root)
        return replace(scan, loading=replace(scan.loading, root=False)), tree

    monkeypatch.setattr("lightsleep.enable.status.collect", collected)


def test_what_only_the_next_boot_brings_is_not_in_force(root: Path) -> None:
    done("enable", "lightsleep:fixed:100us")
    since = status()["since"]
    assert status()["boot_setting"] is None
    for later in ("lightsleep:off", "lightsleep:50us"):
        done("enable", "--persist", "--later", later)
        found = status()
        assert (found["enabled"], found["boot_setting"]) == ("lightsleep:fixed:100us", later)
        assert found["since"] == since
    said = run("status").output
    assert "lightsleep:fixed:100us, since" in said
    assert "brings lightsleep:50us\n" in said
    done("enable", "--persist", "lightsleep:off")
    assert (status()["enabled"], status()["boot_setting"]) == ("lightsleep:off", "lightsleep:off")
    done("disable")
    assert (status()["enabled"], status()["boot_setting"]) == (None, None)


def test_what_the_next_boot_brings_where_nothing_is_enabled_now(root: Path) -> None:
    done("enable", "--persist", "--later", "lightsleep:off")
    found = status()
    assert (found["enabled"], found["boot_setting"]) == (None, "lightsleep:off")
    assert found["by"]
    assert f"brings lightsleep:off, enabled {found['since']} by {found['by']}" in (
        run("status").output
    )
    assert "undid lightsleep enable lightsleep:off" in done("disable")


def test_the_next_boot_is_shown_whatever_is_enabled_after(root: Path) -> None:
    done("enable", "--persist", "--later", "lightsleep:off")
    done("enable", "lightsleep:fixed:100us:weight=20")
    done("enable", "governor:ladder")
    found = status()
    assert found["enabled"] == "lightsleep:fixed:100us:weight=20+governor:ladder"
    assert (found["at_boot"], found["boot_setting"]) == (True, "lightsleep:off")
    assert "brings lightsleep:off\n" in run("status").output
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    assert (status()["enabled"], status()["boot_setting"]) == (None, "lightsleep:off")


@pytest.mark.parametrize(
    ("texts", "together"),
    [
        (["lightsleep", "lightsleep:off"], "lightsleep:off"),
        (["governor:menu", "kvm-halt-poll:0", "governor:teo"], "kvm-halt-poll:0+governor:teo"),
        (["lightsleep+governor:menu", "haltpoll"], "haltpoll"),
        (["haltpoll:200us", "lightsleep"], "lightsleep"),
        (["lightsleep", "governor:teo", "lightsleep:off"], "lightsleep:off+governor:teo"),
        (["haltpoll", "governor:menu", "lightsleep"], "lightsleep+governor:menu"),
        (["kvm-halt-poll:0", "haltpoll:200us"], "haltpoll:200us+kvm-halt-poll:0"),
        (["sysfs:/sys/a=1", "sysfs:/sys/b=1", "sysfs:/sys/a=2"], "sysfs:/sys/b=1+sysfs:/sys/a=2"),
    ],
)
def test_what_several_commands_enabled_together(texts: list[str], together: str) -> None:
    earlier = None
    for text in texts:
        earlier = change.together(earlier, text)
    assert earlier == together


def test_what_several_commands_enabled_can_be_enabled_at_once(root: Path) -> None:
    for text in ("lightsleep", "governor:ladder", "lightsleep:off"):
        done("enable", text)
    before, found = fake_modules.snapshot(root), status()["enabled"]
    done("disable")
    done("enable", found)  # without lightsleep there is no driver that a governor could serve
    assert fake_modules.snapshot(root) == before


@pytest.mark.parametrize(
    ("planted", "files", "setting"),
    [
        ("etc/modules-load.d/x.conf: cpuidle-lightsleep", ["etc/modules-load.d/x.conf"], ""),
        (
            "usr/lib/modules-load.d/p.conf:  virtio_poll_source",
            ["usr/lib/modules-load.d/p.conf"],
            "",
        ),
        ("etc/modules: cpuidle_lightsleep", ["etc/modules"], ""),
        ("run/modules-load.d/x.conf: ; cpuidle_lightsleep", [], None),
        ("etc/modules-load.d/x: cpuidle_lightsleep", [], None),
        # A line is one name: systemd-modules-load would look for a module that is called so.
        ("etc/modules-load.d/x.conf: cpuidle_lightsleep mode=fixed", [], None),
        # One of this name in /etc hides it.
        (
            "etc/modules-load.d/x.conf: # none\nusr/lib/modules-load.d/x.conf: cpuidle_lightsleep",
            [],
            None,
        ),
        (
            "etc/modules: cpuidle_lightsleep\n"
            "etc/modprobe.d/a.conf: options cpuidle-lightsleep mode=fixed poll_limit_us=50\n"
            "usr/lib/modprobe.d/b.conf: options cpuidle_lightsleep wait_weight=9 hold_us=3\n"
            "etc/modprobe.d/c.conf: options other mode=off\n"
            "etc/modprobe.d/d.conf: options cpuidle_lightsleep \\\n"
            'etc/modprobe.d/d.conf: "mode=off"',
            ["etc/modules"],
            ":off:50us:weight=9",
        ),
        # modprobe adds parameters of the kernel command line last.
        (
            "etc/modules: cpuidle_lightsleep\n"
            "etc/modprobe.d/a.conf: options cpuidle_lightsleep mode=off wait_weight=9\n"
            "proc/cmdline: quiet cpuidle-lightsleep.mode=fixed other.mode=off cpuidle_lightsleep.x",
            ["etc/modules"],
            ":fixed:weight=9",
        ),
    ],
)
def test_what_a_boot_loads_whoever_says_so(
    planted: str, files: list[str], setting: str | None, root: Path
) -> None:
    plant(root, planted)
    found = status()
    assert (found["at_boot"], found["boot_files"]) == (bool(files), [f"/{x}" for x in files])
    assert found["boot_setting"] == (None if setting is None else f"lightsleep{setting}")
    assert found["files"] == []
    refused = run("disable")
    assert refused.exit_code == 4
    for name in files:
        assert f"yes: /{name}" in said(root)
        assert f"/{name} loads cpuidle_lightsleep at boot" in " ".join(refused.output.split())
    done("enable", "--persist")
    assert status()["boot_files"] == ["/etc/modules-load.d/lightsleep.conf"] + [
        f"/{x}" for x in files
    ]
    notes = run("disable", "--json").stdout
    assert all(f"/{x} loads cpuidle_lightsleep at boot" in notes for x in files)


def test_a_link_of_debian_is_no_second_file(root: Path) -> None:
    plant(root, "etc/modules: cpuidle_lightsleep")
    (root / "etc/modules-load.d").mkdir()
    (root / "etc/modules-load.d/modules.conf").symlink_to("../modules")
    assert status()["boot_files"] == ["/etc/modules-load.d/modules.conf"]


def test_kernels_that_boot_without_the_module(root: Path) -> None:
    plant(root, "lib/modules/6.12.0/modules.builtin: kernel/x.ko")
    plant(root, "lib/modules/6.1.0/modules.builtin: kernel/x.ko")
    plant(root, "lib/modules/5.0.0/modules.dep: left by depmod")
    plant(root, "lib/modules/7.0.0/modules.builtin: kernel/drivers/cpuidle/cpuidle-lightsleep.ko")
    result = run("enable", "--persist")
    assert "note: a boot of 6.1.0 does not load cpuidle_lightsleep" in result.output
    assert status()["kernels_without_module"] == ["6.1.0"]
    assert "6.1.0: no cpuidle_lightsleep is installed" in said(root)
    again = run("enable", "--persist")
    assert again.exit_code == 4
    assert "a boot of 6.1.0 does not load cpuidle_lightsleep" in again.output
    assert "6.1.0" not in run("enable").output
    plant(root, "lib/modules/6.1.0/updates/dkms/cpuidle_lightsleep.ko.xz: module")
    assert status()["kernels_without_module"] == []


def test_files_that_cannot_be_read_stop_neither_enable_nor_status(root: Path) -> None:
    """What modules.builtin holds is whatever made it wrote; a link may lead to itself."""
    plant(root, "lib/modules/6.1.0/modules.builtin: x")
    (root / "lib/modules/6.1.0/modules.builtin").write_bytes(b"kernel/\xff.ko\n")
    for folder in ("modules-load.d", "modprobe.d"):
        (root / "etc" / folder).mkdir(parents=True)
        (root / "etc" / folder / "x.conf").symlink_to("x.conf")
    done("enable", "--persist")
    assert status()["kernels_without_module"] == ["6.1.0"]
    done("disable")
    assert run("disable").exit_code == 4


def said(root: Path) -> str:
    return " ".join(run("status").output.split())


def test_what_is_not_loaded_is_loaded_by_enable(root: Path) -> None:
    assert said(root).endswith("To load it now: sudo lightsleep enable")
    done("enable", "--persist", "--later", "lightsleep:off")
    assert "The next boot loads cpuidle_lightsleep. To load it now: sudo lightsleep enable" in (
        said(root)
    )
    assert said(root).endswith("enable lightsleep:off")
    shutil.rmtree(root / "run/lightsleep")  # as after a reboot
    assert "The boot did not load cpuidle_lightsleep, or somebody has unloaded it" in said(root)
    assert "journalctl -b -u systemd-modules-load" in said(root)
    (root / MODULE).unlink()
    plant(root, "lib/modules/6.12.0/build/Makefile: all")
    assert "To load it now" not in said(root)  # not-built says what to do first


def test_a_haltpoll_that_enable_unloads_is_not_in_the_way(root: Path) -> None:
    subprocess.run(["modprobe", "cpuidle_haltpoll", "force=1"], check=True)
    assert [x["id"] for x in status()["obstacles"]] == ["other-driver"]
    assert "To load it now: sudo lightsleep enable" in said(root)
    plant(root, "proc/cmdline: idle=poll")
    assert "To load it now" not in said(root)


def test_who_is_not_root_is_told_how_to_load_it(root: Path, as_user: None) -> None:
    assert "To load it now: sudo lightsleep enable" in said(root)
    assert "only root may load a module" in said(root)


def test_after_a_boot_that_the_command_line_rescued(root: Path) -> None:
    done("enable", "--persist", "--later")
    shutil.rmtree(root / "run/lightsleep")
    plant(root, "proc/cmdline: quiet module_blacklist=cpuidle_lightsleep")
    assert [x["id"] for x in status()["obstacles"]] == ["blacklisted"]
    assert "module_blacklist on the kernel command line forbids cpuidle_lightsleep" in said(root)
    assert "To load it now" not in said(root)
    done("disable")


@pytest.mark.parametrize(
    ("folder", "at_boot", "line"),
    [
        ("etc/modules-load.d", None, "unknown: only root may look into /etc/modules-load.d"),
        ("etc/modprobe.d", True, f"yes: /{LOAD}; only root may look into /etc/modprobe.d"),
    ],
)
def test_a_folder_that_only_root_may_look_into(
    folder: str, at_boot: bool | None, line: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("enable", "--persist", "lightsleep:off")
    read_file = restorer.read_file

    def refused(root: Path, name: str) -> str | None:
        if Path(name).parent == root / folder:
            raise PermissionError(errno.EACCES, "Permission denied")
        return read_file(root, name)

    monkeypatch.setattr(restorer, "read_file", refused)
    found = status()
    assert (found["active"], found["enabled"], found["at_boot"]) == (
        True,
        "lightsleep:off",
        at_boot,
    )
    assert found["unreadable"] == [f"/{folder}/lightsleep.conf"]
    assert found["interrupted"] is False
    assert line in said(root)


ETC_MODULES = "etc/modules: cpuidle_lightsleep\n"
MODPROBE_D = "etc/modprobe.d/no.conf"


@pytest.mark.parametrize(
    ("planted", "files", "away"),
    [
        ("proc/cmdline: quiet modules_load=vfat,cpuidle-lightsleep", ["proc/cmdline"], []),
        ("proc/cmdline: modules-load=cpuidle_lightsleep", ["proc/cmdline"], []),
        ("proc/cmdline: rd.modules_load=cpuidle_lightsleep", [], []),
        (f"{ETC_MODULES}{MODPROBE_D}: blacklist cpuidle-lightsleep", [], [MODPROBE_D]),
        # As modprobe reads it: the first word alone counts.
        (f"{ETC_MODULES}{MODPROBE_D}: blacklist cpuidle-lightsleep # slow", [], [MODPROBE_D]),
        (f"{ETC_MODULES}{MODPROBE_D}: blacklist other", ["etc/modules"], []),
        (f"{ETC_MODULES}{MODPROBE_D}: install cpuidle-lightsleep /bin/false", [], [MODPROBE_D]),
        (f"{ETC_MODULES}{MODPROBE_D}: install cpuidle-lightsleep :", [], [MODPROBE_D]),
        (f"{ETC_MODULES}{MODPROBE_D}: install other /bin/true", ["etc/modules"], []),
        (
            f"{ETC_MODULES}{MODPROBE_D}: install cpuidle_lightsleep modprobe -i cpuidle_lightsleep",
            ["etc/modules"],
            [],
        ),
        (
            f"etc/modules: virtio_poll_source\n{MODPROBE_D}: install cpuidle_lightsleep /bin/true",
            [],
            [MODPROBE_D],
        ),
        (f"{MODPROBE_D}: blacklist cpuidle_lightsleep", [], []),
        (
            f"{ETC_MODULES}proc/cmdline: modprobe.blacklist=x,cpuidle_lightsleep",
            [],
            ["proc/cmdline"],
        ),
        # What a module needs is loaded with it, blacklisted or not.
        (
            f"etc/modules: virtio_poll_source\n{MODPROBE_D}: blacklist cpuidle_lightsleep",
            ["etc/modules"],
            [],
        ),
    ],
)
def test_what_keeps_a_boot_from_loading_it(
    planted: str, files: list[str], away: list[str], root: Path
) -> None:
    plant(root, planted)
    found = status()
    assert (found["at_boot"], found["boot_files"]) == (bool(files), [f"/{x}" for x in files])
    assert found["boot_kept_away_by"] == [f"/{x}" for x in away]
    assert (found["boot_setting"] is None) == (not files)
    if away:
        where = "modprobe.blacklist= on" if "proc" in away[0] else f"a line in /{away[0]}"
        assert "no: kept away by" in said(root)
        assert where in said(root)
        refused = run("enable", "--persist")
        assert refused.exit_code == 1
        assert where in " ".join(refused.output.split())
        # What somebody loads by name may be blacklisted.
        assert run("enable").exit_code == (1 if "install" in planted else 0)
    if files == ["proc/cmdline"]:
        assert "remove it from modules_load= there" in " ".join(run("disable").output.split())


def test_a_pipe_in_a_folder_of_settings_is_not_waited_for(root: Path) -> None:
    plant(root, ETC_MODULES)
    (root / "etc/modprobe.d").mkdir(parents=True, exist_ok=True)
    os.mkfifo(root / "etc/modprobe.d/pipe.conf")
    assert status()["at_boot"] is True


@pytest.mark.parametrize(
    ("suffix", "content", "another"),
    [
        ("", b"elf, GNU first, more", False),
        ("", b"elf, GNU second, more", True),
        (".xz", lzma.compress(b"elf, GNU first, more" + SIGNED), False),
        (".xz", lzma.compress(b"elf, GNU second, more"), True),
        (".zst", b"packed", None),
        (".gz", b"damaged", None),
    ],
)
def test_another_build_is_loaded_than_is_installed(
    suffix: str, content: bytes, another: bool | None, root: Path
) -> None:
    assert status()["another_build"] is None  # nothing is loaded
    done("enable")
    assert status()["another_build"] is None  # as of a kernel that shows no notes
    plant(root, f"{BUILD_NOTE}: x")
    (root / BUILD_NOTE).write_bytes(b"GNU first")
    (root / MODULE).unlink()
    assert status()["another_build"] is None  # nothing is installed
    (root / f"{MODULE}{suffix}").write_bytes(content)
    assert status()["another_build"] is another
    told = f"another build than /{MODULE}{suffix}, which is installed: until a reboot, or until"
    assert (told in said(root)) == bool(another)


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


def test_status_does_not_take_an_unknown_cost_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(unfold("lightsleep-guest", tmp_path), f"{PARAMETERS}/halt_cost_ns: 0")
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", tmp_path)
    assert "0 ns (nothing measured" in done("status")


@pytest.mark.parametrize("limit_us", [2, 2_000_000_000])
def test_status_names_cpus_that_a_latency_limit_keeps_polling(
    limit_us: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(unfold("lightsleep-guest", tmp_path), f"dev/cpu_dma_latency: {limit_us}")
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", tmp_path)
    told = "always polls CPU 0-3 may not halt: a latency limit forbids it"
    assert (told in " ".join(done("status").split())) == (limit_us == 2)
    why = "a latency limit forbids it" if limit_us == 2 else None
    assert [cpu["always_polling"] for cpu in status()["cpus"]] == [why] * 4


@pytest.mark.parametrize("short", [True, False])
def test_status_says_that_the_host_is_short_of_cores(
    short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(unfold("lightsleep-guest", tmp_path), f"{PARAMETERS}/host_is_short: {int(short)}")
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", tmp_path)
    told = "host short of cores: for now, no CPU heeds a latency limit"
    assert (told in said(tmp_path)) == short


def test_status_shows_each_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", unfold("lightsleep-guest", tmp_path))
    text = done("status")
    assert status()["pays"]["verdict"] == "pays"
    assert text.count("70.0%") == 4
    assert "It pays" in text


def test_status_tells_how_long_a_pause_lasts_and_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = unfold("lightsleep-guest", tmp_path)
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    folder = "sys/devices/system/cpu/cpu{}/lightsleep"
    for cpu in range(4):
        plant(root, f"{folder.format(cpu)}/contention_pauses: 3")
    plant(root, f"{folder.format(2)}/contended: 1")
    lines = done("status").splitlines()  # an older driver tells no more
    assert "pauses" in " ".join(lines)
    (row,) = [line for line in lines if line.split()[:1] == ["2"]]
    assert row.rstrip().endswith("the host needs the core")
    for cpu, left_ms in enumerate((0, 0, 11_400, 0)):
        paused = f"paused_ns: 21000000000\n{folder.format(cpu)}/pause_left_ms: {left_ms}"
        plant(root, f"{folder.format(cpu)}/{paused}")
    lines = done("status").splitlines()
    rows = {line.split()[0]: line.rstrip() for line in lines if line[:3].strip().isdigit()}
    assert "pauses" not in " ".join(lines)
    assert "paused s" in " ".join(lines)
    assert rows["2"].endswith("the host needs the core, for 12 s more")
    assert " 9.6 " in rows["2"]
    assert "21.0" in rows["1"]
    cpu2 = status()["cpus"][2]
    assert (cpu2["paused_ns"], cpu2["pause_left_ms"]) == (21_000_000_000, 11_400)
    assert cpu2["not_polling"] == "the host needs the core"


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


def test_a_driver_that_the_idle_loop_never_asks_is_not_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path), "proc/sys/kernel/arch: aarch64")
    monkeypatch.setattr("lightsleep.enable.cli.ROOT", root)
    assert status()["active"]
    plant(root, "proc/cmdline: nohlt")
    found = status()
    assert (found["active"], found["pays"]) == (False, None)
    assert [x["id"] for x in found["obstacles"]] == ["idle-option"]
    assert run("status").exit_code == 4
    assert "Remove nohlt from the kernel command line" in said(root)
    assert "To load it now" not in said(root)
