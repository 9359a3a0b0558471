# SPDX-License-Identifier: GPL-2.0-only
"""Nothing trips scan: damaged files, missing ones, those it must not read, wrong words."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from paths import ROOT
from scan_trees import NAMES, plant, unfold
from scans import CPU, VALID, check_everything, run, show

from lightsleep.scan.collect import collect
from lightsleep.scan.document import document
from lightsleep.scan.lint import lint
from lightsleep.scan.tree import Tree, read_bounded


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
    "garbage": lambda path: path.write_bytes(bytes(range(256)) * 8),
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


# A larger x86_64 machine has no other files than these two, but for another disk's.
@pytest.mark.parametrize("machine", ["lightsleep-guest", "kvm-haltpoll-zero"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_every_file_damaged(damage: str, machine: str, tmp_path: Path) -> None:
    unfold(machine, tmp_path)
    for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
        DAMAGE[damage](path)
    check_everything(tmp_path)


@pytest.mark.parametrize("path", [f"{CPU}/online", "dev/cpu_dma_latency", "var/lib/dkms/mok.pub"])
def test_no_device_of_this_machine_that_a_recording_links_to_is_opened(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening alone starts a watchdog, which resets the machine, or rewinds a tape."""
    unfold("intel-laptop", tmp_path)
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).unlink(missing_ok=True)
    (tmp_path / path).symlink_to("/dev/zero")
    opened, real = [], os.open

    def noted(file: str | Path, *words: int) -> int:
        opened.append(Path(file))
        return real(file, *words)

    monkeypatch.setattr(os, "open", noted)
    result, _ = collect(tmp_path)
    assert opened
    assert tmp_path / path not in opened
    assert result.problems == {}


@pytest.mark.parametrize("target", ["{0}/secret", "../../../../../../secret"])
def test_no_link_leads_out_of_a_recording(target: str, tmp_path: Path) -> None:
    """Its owner would show, or send back, what is in a file of this machine."""
    root = unfold("intel-laptop", tmp_path / "machine")
    (tmp_path / "secret").write_text("secret\n")
    (root / f"{CPU}/cpuidle/current_driver").unlink()
    (root / f"{CPU}/cpuidle/current_driver").symlink_to(target.format(tmp_path))
    shutil.rmtree(root / "sys/class")
    (root / "sys/class").symlink_to(tmp_path)
    result, tree = collect(root)
    assert result.cpuidle.driver is None
    assert not any(b"secret" in content for content in tree.read.values())
    assert tree.names("sys/class") == []
    assert not tree.exists("sys/class/secret")
    assert not tree.is_file("sys/class/secret")


SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def test_no_link_of_a_recording_leads_to_keys_and_variables_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at and not kept, but what they say is shown."""
    root = plant(unfold("intel-laptop", tmp_path / "machine"), "sys/firmware/efi/x: x")
    plant(tmp_path, f"secret: secret\n{SECURE_BOOT}: x")
    (tmp_path / SECURE_BOOT).write_bytes(b"\x06\0\0\0\1")
    (root / "var/lib/dkms").mkdir(parents=True)
    (root / "var/lib/dkms/mok.pub").symlink_to(tmp_path / "secret")
    (root / "sys/firmware/efi/efivars").symlink_to(tmp_path / "sys/firmware/efi/efivars")
    opened, real = [], os.open

    def noted(file: str | Path, *words: int) -> int:
        opened.append(Path(file).resolve())
        return real(file, *words)

    monkeypatch.setattr(os, "open", noted)
    assert collect(root)[0].loading.secure_boot is None
    assert opened
    assert [path for path in opened if not path.is_relative_to(root.resolve())] == []


def test_keys_are_found_by_links_within_a_recording(tmp_path: Path) -> None:
    root = plant(unfold("intel-laptop", tmp_path), "kept/dkms/mok.pub: KEY")
    plant(root, "sys/firmware/efi/mok-variables/MokListRT: some KEY")
    (root / "var/lib").mkdir(parents=True)
    (root / "var/lib/dkms").symlink_to("/kept/dkms")
    assert collect(root)[0].loading.enrolled is True


@pytest.mark.parametrize("target", ["/sys/firmware/base", "../sys/firmware/base", "./../a/b"])
def test_links_within_a_recording_are_followed(target: str, tmp_path: Path) -> None:
    """As /proc/device-tree is one, of a machine whose files are mounted in a folder."""
    root = unfold("arm64-psci", tmp_path)
    plant(root, "sys/firmware/base/hypervisor/compatible: linux,kvm")
    (root / "a").mkdir()
    (root / "a/b").symlink_to("../sys/firmware/base")
    (root / "proc/device-tree").symlink_to(target)
    assert collect(root)[0].hypervisor == "KVM"


@pytest.mark.parametrize("path", ["proc/interrupts", "proc/stat", "dev/cpu_dma_latency"])
def test_what_a_container_masks_is_not_there(path: str, tmp_path: Path) -> None:
    """It mounts /dev/null on a file, as Docker, Podman and Kubernetes do on /proc/interrupts."""
    unfold("lightsleep-guest", tmp_path)
    (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / path).unlink(missing_ok=True)
    (tmp_path / path).symlink_to("/dev/null")
    result, tree = collect(tmp_path)
    assert (result.problems, path in tree.read) == ({}, False)
    with pytest.raises(FileNotFoundError):
        read_bounded(Path("/dev/null"), 4, devices=True)


def test_the_latency_limit_of_this_machine_is_read_from_its_device() -> None:
    assert read_bounded(Path("/dev/zero"), 4, devices=True) == bytes(4)
    with pytest.raises(OSError, match="not a file"):
        read_bounded(Path("/dev/zero"), 4)


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

    def read_and_unplug(tree: Tree, path: str, most: int) -> bytes | None:
        nonlocal reads
        if reads == moment:
            shutil.rmtree(tmp_path / CPU / "cpu3")
        reads += 1
        return read(tree, path, most)

    monkeypatch.setattr(Tree, "_read", read_and_unplug)
    result, _ = collect(tmp_path)
    VALID.validate(document(result, lint(result)))


def test_masked_proc_falls_back_on_uname(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tree, "_read", lambda tree, path, most: None)
    result, _ = collect()
    assert (result.kernel.release, result.kernel.arch) == (os.uname().release, os.uname().machine)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), machine=st.sampled_from(NAMES))
def test_random_bytes_in_random_files(data: st.DataObject, machine: str, tmp_path: Path) -> None:
    # Made once for each machine: hypothesis calls this again and again with one tmp_path.
    root = tmp_path / machine
    if not root.exists():
        unfold(machine, root)
    files = sorted(path for path in root.rglob("*") if path.is_file())
    content = st.one_of(
        st.binary(max_size=64),
        st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
        st.sampled_from([b"0-3,", b"n/a", b"(null)", b"Y", b'idle="', b"POLL", b"haltpoll"]),
    )
    damaged = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=12, unique=True))
    whole = [file.read_bytes() for file in damaged]
    try:
        for file in damaged:
            file.write_bytes(data.draw(content))
        check_everything(root)
        assert run("--root", root, "--record", tmp_path / "fuzz.tar.gz").exception is None
    finally:
        for file, before in zip(damaged, whole, strict=True):
            file.write_bytes(before)


# The command.


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    [
        (["--root", "nowhere"], 1, "nowhere is not a folder"),
        (["--root", "n" * 256], 1, f"cannot scan {'n' * 256}: File name too long"),
        (["--root", "loop"], 1, "cannot scan loop: Too many levels of symbolic links"),
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
    (tmp_path / "loop").symlink_to("loop")
    result = run(*arguments, width=200)
    assert result.exit_code == status
    assert complaint in result.output
    assert "Traceback" not in result.output


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.usefixtures("paths_that_hide_errors")
def test_a_root_that_others_may_not_look_into(tmp_path: Path) -> None:
    (tmp_path / "machine").mkdir()
    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        result = run("--root", tmp_path / "machine", width=200)
    finally:
        os.seteuid(0)
    assert f"cannot scan {tmp_path / 'machine'}: Permission denied" in result.output


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
    package = ROOT
    return subprocess.run([*nobody, *command], capture_output=True, text=True, cwd=package)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_without_privileges() -> None:
    if not shutil.which("setpriv") or setpriv(sys.executable, "-c", "import click").returncode:
        pytest.skip("nobody cannot run this Python")
    result = setpriv(sys.executable, "-m", "lightsleep", "scan", "--json")
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout)
    VALID.validate(printed)
    latency_device = Path("/dev/cpu_dma_latency")
    if latency_device.exists() and not latency_device.stat().st_mode & stat.S_IROTH:
        # Beside debugfs, where it is mounted: that is root's, too.
        assert printed["problems"]["dev/cpu_dma_latency"] == "Permission denied"
        assert set(printed["problems"].values()) == {"Permission denied"}
