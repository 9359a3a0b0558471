# SPDX-License-Identifier: GPL-2.0-only
"""The kernel module that measures: what stands in its way, and that it goes when measuring ends."""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fake_modules
import pytest
from measure_fakes import FakeBackend
from measure_runs import TRUTH_NS, measured, run
from scan_trees import plant, set_secure_boot, unfold

from lightsleep import sources
from lightsleep.measure import cli, module, userspace
from lightsleep.measure.kernel_backend import FILES
from lightsleep.settings import journalled


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = unfold("powernv-power9", tmp_path / "machine")
    monkeypatch.setattr(cli, "ROOT", root)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(module, "_run", lambda argv: f"{argv[0]} refuses")
    fake_modules.install(root, monkeypatch)
    return plant(root, "absent: test_cpuidle_latency")


LOADED = "sys/module/test_cpuidle_latency/refcnt: 0\n"
MOUNTED = "proc/self/mounts: debugfs /sys/kernel/debug debugfs rw 0 0\n"


@pytest.mark.parametrize(
    ("there", "complaint"),
    [
        ("", "is not loaded: use --load to load or build it, or measure with --mode userspace"),
        ("proc/version: Linux\n", "this kernel loads no modules: boot one that does"),
        ("proc/sys/kernel/modules_disabled: 1\n", "this kernel loads no modules: boot one"),
        (LOADED, "debugfs is not mounted: mount -t debugfs"),
        (LOADED + MOUNTED, "may be of another version"),
        (
            LOADED + MOUNTED + "sys/kernel/security/lockdown: none [integrity] confidentiality\n",
            "the kernel is locked down (integrity)",
        ),
        (  # where to build or to sign the module would be in vain
            "sys/kernel/security/lockdown: none [integrity] confidentiality\n",
            "the kernel is locked down (integrity)",
        ),
        (  # where the files are there and cannot be written to
            f"{LOADED}{MOUNTED}sys/kernel/debug/latency_test/samples: 200\n"
            "sys/kernel/security/lockdown: none [integrity] confidentiality\n",
            "the kernel is locked down (integrity)",
        ),
    ],
)
def test_no_module(there: str, complaint: str, bare: Path) -> None:
    plant(bare, there)
    result = run("--mode", "module")
    assert result.exit_code == 1
    assert complaint in " ".join(result.output.split())


@pytest.mark.parametrize("mode", ["auto", "module"])
def test_load_says_what_is_missing(mode: str, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = os.uname().release
    monkeypatch.setattr(module, "HEADERS", bare)
    result = run("--mode", mode, "--load")
    assert result.exit_code == 1
    assert f"apt install linux-headers-{release}" in " ".join(result.output.split())

    plant(bare, f"{release}/build/Makefile: all")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "needs make and gcc: install make and gcc" in " ".join(run("--load").output.split())
    plant(bare, f"{release}/build/.config: CONFIG_CC_IS_CLANG=y")
    assert "needs make and clang" in " ".join(run("--load").output.split())
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert "cannot build test_cpuidle_latency" in run("--load").output
    monkeypatch.setattr(sources, "KERNEL", bare / "nowhere")
    said = " ".join(run("--load").output.split())
    dkms = f"{sources.DKMS_INSTALL} LIGHTSLEEP_TOOLS=1"
    for way_out in ("pip install '.[lab]'", dkms, "--mode userspace"):
        assert way_out in said


@pytest.mark.parametrize("tool", ["mkdtemp", "copyfile", "make"])
def test_load_says_where_there_is_no_room_to_build(
    tool: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = os.strerror(errno.ENOSPC)

    def copy(_source: str, target: str, **_: object) -> None:
        raise OSError(errno.ENOSPC, full, target)

    def make_folder(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, full, "/tmp/lightsleep-x")

    plant(bare, f"{os.uname().release}/build/Makefile: all")
    monkeypatch.setattr(module, "HEADERS", bare)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(module, "_run", lambda _: f"x.o: {full}")
    if tool == "copyfile":
        monkeypatch.setattr(shutil, "copyfile", copy)
    elif tool == "mkdtemp":
        monkeypatch.setattr(tempfile, "mkdtemp", make_folder)
    result = run("--load")
    assert isinstance(result.exception, SystemExit)
    said = " ".join(result.output.split())
    assert "Error: cannot build test_cpuidle_latency" in said
    assert f": {full}" in said
    assert ("'/tmp/lightsleep-" in said) == (tool != "make")
    assert said.endswith("set TMPDIR to a folder with room")


def test_load_says_why_the_installed_module_is_refused(bare: Path) -> None:
    (bare / "absent").rename(bare / "refused")
    set_secure_boot(bare, on=True)
    result = run("--load")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "cannot load module test_cpuidle_latency: " in said
    assert "Key was rejected by service Enroll the key that DKMS signs with: mokutil" in said
    assert "Or measure with --mode userspace" in said
    assert "headers" not in said


@pytest.mark.parametrize(
    ("refusal", "secure_boot", "hint"),
    [
        ("refused", True, "Sign it, or disable Secure Boot"),
        ("refused", False, "If neither is there, a service sets this at boot"),
        ("refused", None, "Under Secure Boot: Sign it, or disable Secure Boot. Without it: Remove"),
        ("denied", True, None),
    ],
)
def test_load_says_why_a_module_that_was_just_built_is_refused(
    refusal: str,
    secure_boot: bool | None,
    hint: str | None,
    bare: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_build", lambda folder: folder / "test_cpuidle_latency.ko")
    plant(bare, f"{refusal}: test_cpuidle_latency\nsys/kernel/security/lockdown: [none] integrity")
    if secure_boot is not None:
        set_secure_boot(bare, secure_boot)
    result = run("--load", "--mode", "module")
    assert result.exit_code == 1
    said = " ".join(result.output.split())
    assert "the kernel refuses test_cpuidle_latency" in said
    assert ("loads only signed modules" in said) == bool(hint)
    assert (hint or "") in said
    assert ("disable Secure Boot" in said) == bool(hint and secure_boot is not False)


def test_what_a_module_that_was_just_built_needs_is_loaded_with_it(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where CONFIG_VIRTIO is m, and no device of virtio is there."""
    monkeypatch.setattr(module, "_build", lambda folder: folder / "test_cpuidle_latency.ko")
    modinfo = bare.parent / f"{bare.name}-tools/modinfo"
    modinfo.write_text("#!/bin/sh\necho virtio,virtio_ring\n")
    modinfo.chmod(0o755)
    journal = bare / journalled.RUN_DIR / "journal"
    with journalled.session(bare) as session:
        module._load(session, bare)
        changes = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
        loaded = [x["module"] for x in changes if x["new"]]
        assert loaded[-3:] == ["virtio", "virtio_ring", "test_cpuidle_latency"]
        assert all((bare / "sys/module" / x / "initstate").exists() for x in loaded[-3:])
    assert not any((bare / "sys/module" / x).exists() for x in loaded[-3:])


def test_a_module_that_was_loaded_is_unloaded(bare: Path) -> None:
    plant(bare, f"{FILES}/run: x\n{FILES}/samples: x")
    (bare / "absent").unlink()
    result = run("--load", "--source", "device")
    assert result.exit_code == 4
    assert "no virtio entropy device" in " ".join(result.output.split())
    assert not (bare / "sys/module/test_cpuidle_latency").exists()
    assert not (bare / "run/lightsleep/journal").exists()


@pytest.mark.parametrize("words", [["-c", "99"], ["-c", "1", "--source-cpu", "1"]])
def test_what_cannot_be_measured_loads_nothing(words: list[str], bare: Path) -> None:
    result = run("--load", *words)
    assert result.exit_code == 2, result.output
    assert not (bare / "run/lightsleep").exists()


KILLED = """
import sys, time
from pathlib import Path
from lightsleep.measure import module
from lightsleep.settings import journalled
root = Path(sys.argv[1])
with journalled.session(root) as session:
    module.attached(root, True, session)
    print(flush=True)
    time.sleep(1000)
"""


def test_killed_it_leaves_no_module(bare: Path) -> None:
    plant(bare, f"{FILES}/run: x\n{FILES}/samples: x")
    (bare / "absent").unlink()
    loaded = bare / "sys/module/test_cpuidle_latency"
    argv = [sys.executable, "-c", KILLED, str(bare)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "\n"
        assert loaded.exists()
        process.kill()
    fake_modules.wait_for_the_restorer(bare)
    assert not loaded.exists()


def test_auto_falls_back_to_user_space_and_says_so(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = FakeBackend(dict(TRUTH_NS), bare, mode="userspace")

    @contextlib.contextmanager
    def attached(root: Path) -> Iterator[FakeBackend]:
        assert root == bare
        yield backend

    monkeypatch.setattr(userspace, "attached", attached)
    document = measured("-c", "1", "-n", "20")
    assert document["mode"] == "userspace"
    assert document["notes"][0] == (
        "measured from user space, because the kernel module test_cpuidle_latency is not loaded. "
        "The module (use --load to load or build it) proves which state the kernel asked for, and "
        "measures up to the interrupt"
    )
    assert "made up: " in " ".join(document["notes"])
    plain = measured("-c", "1", "-n", "20", "--mode", "userspace")
    assert not any("is not loaded" in note for note in plain["notes"])
