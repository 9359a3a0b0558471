# SPDX-License-Identifier: GPL-2.0-only
"""Whether lightsleep could load here: each obstacle on a machine that has it, and near misses."""

import gzip
import lzma
import os
import re
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from paths import ROOT
from scan_trees import NAMES, plant, set_secure_boot, unfold

from lightsleep.namespaces import MACHINE_NAMESPACES
from lightsleep.scan import explain, loading
from lightsleep.scan.collect import collect
from lightsleep.scan.model import Scan
from lightsleep.scan.obstacles import (
    ARCHITECTURES,
    KERNELS,
    NEWEST,
    OLDEST,
    RULES,
    in_short,
    obstacles,
)
from lightsleep.scan.tree import Tree

RELEASE = "lib/modules/6.12.0"
MODULE = f"{RELEASE}/updates/dkms/cpuidle_lightsleep.ko"
SIGNATURE = "~Module signature appended~"
LOCKED = "sys/kernel/security/lockdown: none [integrity] confidentiality"
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SIGNED = f"{MODULE}: {SIGNATURE}\n{LOCKED}\nvar/lib/dkms/mok.pub: KEY"
OWNER_KEYS = "sys/firmware/efi/mok-variables/MokListRT"
FIRMWARE_KEYS = "sys/firmware/efi/efivars/db-d719b2cb-3d3a-4596-a3bc-dad00e67656f"

KO = "cpuidle_lightsleep.ko"
TDX = "proc/cpuinfo: flags : hypervisor tdx_guest"
OTHER = "proc/sys/kernel/osrelease"
ARM64 = f"{MODULE}: module\nproc/sys/kernel/arch: aarch64"

# What is planted on a guest without a cpuidle driver -> the obstacles.
CASES = {
    f"{MODULE}: module": [],
    f"{RELEASE}/extra/cpuidle_lightsleep.ko: module": [],
    f"{RELEASE}/build/Makefile: all": ["not-built"],
    f"{RELEASE}/modules.dep: x": ["not-built"],
    "lib/modules/6.11.0/updates/cpuidle_lightsleep.ko: module": ["not-built"],
    f"{MODULE}: module\n{LOCKED}": ["unsigned"],
    f"{MODULE}: module\nsys/kernel/security/lockdown: [none] integrity confidentiality": [],
    f"{MODULE}: module\nsys/module/module/parameters/sig_enforce: Y": ["unsigned"],
    f"{MODULE}: module\nsys/module/module/parameters/sig_enforce: N": [],
    f"{SIGNED}\n{OWNER_KEYS}: OTHER": ["not-enrolled"],
    f"{SIGNED}\n{OWNER_KEYS}: OTHER KEY": [],
    f"{SIGNED}\nvar/lib/shim-signed/mok/MOK.der: MOK\n{OWNER_KEYS}: MOK": [],  # the other key is
    f"{SIGNED}\n{OWNER_KEYS}: OTHER\n{FIRMWARE_KEYS}: KEY": [],
    SIGNED: [],  # whether it is enrolled is not known
    f"{OTHER}: 6.0.19-amd64\n{RELEASE}/build/Makefile: all": ["unsupported-kernel"],
    f"{OTHER}: 7.4.0\n{RELEASE}/build/Makefile: all": ["unsupported-kernel"],
    f"{OTHER}: 7.3.12+deb14\n{RELEASE}/build/Makefile: all": ["not-built"],
    f"{OTHER}: 6.1\n{RELEASE}/build/Makefile: all": ["not-built"],
    f"{OTHER}: 7.4.0\nlib/modules/7.4.0/extra/cpuidle_lightsleep.ko: module": [],
    "proc/sys/kernel/arch: riscv64": ["unsupported-kernel"],
    f"{MODULE}: module\nproc/sys/kernel/arch: riscv64": [],
    f"{MODULE}: module\nproc/cmdline: module_blacklist=a,cpuidle_lightsleep": ["blacklisted"],
    f"{MODULE}: module\nproc/cmdline: module_blacklist=cpuidle_lightsleep_x,cpuidle": [],
    f"{MODULE}: module\nproc/cmdline: module_blacklist=cpuidle_lightsleep module_blacklist=b": [],
    f"{MODULE}: module\nproc/cpuinfo: bugs : fxsave_leak apic_c1e": ["timers-stop"],
    f"{MODULE}: module\nproc/cpuinfo: bugs : amd_e400": [],
    f"{TDX}\n{OTHER}: 6.2.16-amd64\nlib/modules/6.2.16-amd64/extra/{KO}: x": ["tdx-guest"],
    f"{TDX}\n{OTHER}: 6.3\nlib/modules/6.3/extra/{KO}: x": [],
    f"proc/cpuinfo: flags : fpu\n{OTHER}: 6.1.0\nlib/modules/6.1.0/extra/{KO}: x": [],
    "proc/cmdline: idle=poll": ["idle-option"],
    "proc/cmdline: idle=halt cpuidle.off=1": ["cpuidle-off", "idle-option"],
    "proc/cmdline: quiet cpuidle.off=0": [],
    "proc/cmdline: idle=wfi nohlt": [],  # no options of x86
    f"{ARM64}\nproc/cmdline: nohlt": ["idle-option"],
    f"{ARM64}\nproc/cmdline: nohlt hlt": [],
    f"{ARM64}\nproc/cmdline: idle=nop": ["idle-option"],
    f"{ARM64}\nproc/cmdline: idle=poll": [],
    "sys/devices/system/cpu/cpuidle/current_driver: haltpoll": ["other-driver"],
    "sys/devices/system/cpu/cpuidle/current_driver: odd_idle": ["other-driver"],
    "sys/devices/system/cpu/cpuidle/current_driver: lightsleep": [],
    "proc/sys/kernel/modules_disabled: 1": ["no-modules"],
    "proc/sys/kernel/modules_disabled: 1\nlib/modules/6.1.0/x:": ["no-modules"],
    "proc/sys/kernel/modules_disabled: 0": [],
    ".dockerenv:": ["container"],
    "run/systemd/container: lxc": ["container"],
    "run/.containerenv:": ["container"],
}


def found(root: Path) -> list[str]:
    return [obstacle.id for obstacle in obstacles(collect(root)[0])]


@pytest.mark.parametrize("planted", CASES, ids=lambda text: text.replace("\n", ", "))
def test_obstacles(planted: str, tmp_path: Path) -> None:
    plant(unfold("no-cpuidle", tmp_path), planted)
    assert found(tmp_path) == CASES[planted]


MACHINE = MACHINE_NAMESPACES
OWN_PROCESSES = MACHINE | {"pid": "pid:[4026532283]"}


@pytest.mark.parametrize(
    ("namespaces", "planted", "kind", "recorded"),
    [
        (MACHINE, "", None, None),
        (OWN_PROCESSES, "", "unknown", None),
        (OWN_PROCESSES, ".dockerenv:", "docker", "docker"),
        # Of docker run --pid=host.
        (MACHINE | {"ipc": "ipc:[4026532282]"}, ".dockerenv:", "docker", "docker"),
        # A virtual machine whose root file system was made from an image of a container.
        (MACHINE, ".dockerenv:", None, "docker"),
        (MACHINE, "run/.containerenv:", None, "podman"),
        # nspawn names itself, whatever it shares.
        (MACHINE, "run/systemd/container: systemd-nspawn", "systemd-nspawn", "systemd-nspawn"),
        ({}, "", None, None),  # a chroot without /proc
        ({}, ".dockerenv:", "docker", "docker"),
    ],
)
def test_namespaces_tell_a_container_where_its_files_do_not(
    namespaces: dict[str, str],
    planted: str,
    kind: str | None,
    recorded: str | None,
    tmp_path: Path,
) -> None:
    """Kubernetes leaves no file that names it."""
    root = plant(unfold("no-cpuidle", tmp_path), planted)
    (root / "proc/self/ns").mkdir(parents=True)
    for name, namespace in namespaces.items():
        (root / "proc/self/ns" / name).symlink_to(namespace)
    tree = Tree(root)
    assert loading.read(tree, "6.12.0", running=True).container == kind
    assert loading.read(tree, "6.12.0", running=False).container == recorded


@pytest.mark.parametrize(
    ("own", "root_of_init", "kind"),
    [
        ("ipc uts cgroup", "other", "unknown"),
        ("cgroup", "other", "unknown"),
        ("ipc uts", "here", None),  # a service with PrivateIPC= and ProtectHostname=
        ("ipc uts", None, "unknown"),
        ("uts", None, None),
        ("", "other", None),  # a chroot
    ],
)
def test_a_container_that_shares_the_processes_of_the_host(
    own: str, root_of_init: str | None, kind: str | None, tmp_path: Path
) -> None:
    """As of docker run --pid=host, where no file names it."""
    root = plant(unfold("no-cpuidle", tmp_path / "here"), "")
    (root / "proc/self/ns").mkdir(parents=True)
    for name, namespace in (MACHINE | dict.fromkeys(own.split(), "x:[4026532282]")).items():
        (root / "proc/self/ns" / name).symlink_to(namespace)
    if root_of_init:
        (root / "proc/1").mkdir()
        (tmp_path / "other").mkdir()
        (root / "proc/1/root").symlink_to(tmp_path / root_of_init)
    assert loading.container(Tree(root), running=True) == kind


HERE = "24 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n25 24 0:22 / /proc rw - proc proc rw"


@pytest.mark.parametrize(
    ("init", "own", "another"),
    [
        (HERE, HERE, False),
        (HERE, HERE.replace("24 1 ", "310 309 "), False),  # a service with mounts of its own
        (HERE, "25 24 0:22 / /proc rw - proc proc rw", True),  # nothing is mounted at its root
        (HERE, HERE.replace("254:1", "254:2"), True),
        (HERE, HERE.replace("254:1 /", "254:1 /srv/image"), True),
        ("", HERE, None),
        (HERE, None, None),
        (None, HERE, None),
    ],
)
def test_mounts_tell_a_chroot_to_whom_may_not_look_at_the_root_of_init(
    init: str | None,
    own: str | None,
    another: bool | None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def denied(*_: object) -> bool:
        raise PermissionError

    for process, mounts in (("1", init), ("self", own)):
        if mounts is not None:
            plant(tmp_path, f"proc/{process}/mountinfo:")
            (tmp_path / f"proc/{process}/mountinfo").write_text(mounts)
    monkeypatch.setattr(Path, "samefile", denied)
    assert loading.has_another_root(tmp_path) is another


def test_without_proc_it_is_a_chroot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As debootstrap leaves it. A user who may not look at init's root knows nothing."""
    monkeypatch.setattr(Path, "samefile", lambda *_: (tmp_path / "gone").stat())
    assert loading.has_another_root(Path("/")) is None
    monkeypatch.setattr(loading, "PROC_SELF", tmp_path / "gone")
    assert loading.has_another_root(Path("/")) is True
    assert loading.has_another_root(tmp_path) is None


def without_cpuidle(root: Path) -> Path:
    unfold("no-cpuidle", root)
    for name in ("current_driver", "current_governor", "available_governors"):
        (root / "sys/devices/system/cpu/cpuidle" / name).unlink()
    return root


def test_a_kernel_without_cpuidle(tmp_path: Path) -> None:
    (one,) = obstacles(collect(without_cpuidle(tmp_path))[0])
    assert one.id == "no-cpuidle"
    assert "Boot a kernel with CONFIG_CPU_IDLE=y" in one.fix


def test_no_other_kernel_helps_where_xen_is_why_there_is_no_cpuidle(tmp_path: Path) -> None:
    root = plant(without_cpuidle(tmp_path), "sys/hypervisor/type: xen")
    (one,) = obstacles(collect(root)[0])
    assert one.id == "no-cpuidle"
    assert "Xen" in one.what
    assert "CONFIG_CPU_IDLE" not in one.fix
    assert "HVM guest" in one.fix


@pytest.mark.parametrize("hypervisor", ["", "sys/hypervisor/type: xen"])
def test_that_there_is_no_cpuidle_is_also_why_there_is_no_driver(
    hypervisor: str, tmp_path: Path
) -> None:
    scan = collect(plant(without_cpuidle(tmp_path), hypervisor))[0]
    assert scan.hypervisor
    (one,) = obstacles(scan)
    assert explain.why_no_driver(scan) == one.what


def test_xen_is_no_obstacle_where_there_is_cpuidle(tmp_path: Path) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"{MODULE}: module\nsys/hypervisor/type: xen")
    assert found(root) == []


@pytest.mark.parametrize("content", [b"", b"\x06\0\0\0\1", b"\x06\0\0\0\0", b"garbage"])
def test_secure_boot(content: bytes, tmp_path: Path) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"{SECURE_BOOT}: x")
    (root / SECURE_BOOT).write_bytes(content)
    known = {b"\x06\0\0\0\1": True, b"\x06\0\0\0\0": False}
    assert collect(root)[0].loading.secure_boot is known.get(content)


@pytest.mark.parametrize(
    ("firmware", "known"), [("acpi/pm_profile: 4", False), ("efi/fw_platform_size: 64", None)]
)
def test_without_efi_there_is_no_secure_boot(
    firmware: str, known: bool | None, tmp_path: Path
) -> None:
    """Where there is EFI, efivarfs may not be mounted."""
    root = plant(unfold("no-cpuidle", tmp_path), f"sys/firmware/{firmware}")
    assert collect(root)[0].loading.secure_boot is known


@pytest.mark.parametrize("secure_boot", [None, False, True])
@pytest.mark.parametrize("enforced", [LOCKED, "sys/module/module/parameters/sig_enforce: Y"])
@pytest.mark.parametrize("signed", [False, True])
def test_a_key_is_to_be_enrolled_only_where_the_kernel_would_load_it(
    secure_boot: bool | None, enforced: str, signed: bool, tmp_path: Path
) -> None:
    """The kernel ignores the keys of the machine's owner while Secure Boot is off.

    Whether it is, nothing tells where efivarfs is not mounted.
    """
    root = plant(unfold("no-cpuidle", tmp_path), f"{MODULE}: module\n{enforced}")
    if signed:
        plant(root, f"{MODULE}: {SIGNATURE}\nvar/lib/dkms/mok.pub: KEY\n{OWNER_KEYS}: OTHER")
    if secure_boot is not None:
        set_secure_boot(root, secure_boot)
    (one,) = obstacles(collect(root)[0])
    assert one.id == ("not-enrolled" if signed else "unsigned")
    assert ("mokutil --import" in one.fix) == (secure_boot is not False)
    assert ("switch Secure Boot off" in one.fix) == (secure_boot is not False and not signed)
    assert ("mokutil --sb-state" in one.fix) == (secure_boot is None)
    to_remove = "Remove module.sig_enforce and lockdown= from the kernel command line"
    assert (to_remove in one.fix) != bool(secure_boot)


MODULE_TEXT = b"module" * 100 + f"{SIGNATURE}\n".encode()
GZ, XZ = gzip.compress(MODULE_TEXT, mtime=0), lzma.compress(MODULE_TEXT)


@pytest.mark.parametrize(
    ("suffix", "content", "signed"),
    [
        (".gz", GZ, True),
        (".xz", XZ, True),
        (".gz", gzip.compress(b"module", mtime=0), False),
        (".gz", GZ[:10] + b"\xff" + GZ[11:], None),  # no such block
        (".gz", GZ[:-9], None),
        (".xz", XZ[:20] + b"\xff" + XZ[21:], None),
        (".xz", XZ[:-9], None),
        (".xz", b"not xz", None),
        (".gz", b"not gzip", None),
        (".zst", b"anything", None),
        ("", b"module", False),
        ("", f"module{SIGNATURE}\n".encode(), True),
    ],
)
def test_signatures(suffix: str, content: bytes, signed: bool | None, tmp_path: Path) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"{MODULE}{suffix}: x")
    (root / f"{MODULE}{suffix}").write_bytes(content)
    assert collect(root)[0].loading.signed is signed


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_a_module_that_unpacks_to_too_much(
    suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "MAX_UNPACKED", 1 << 20)
    root = plant(unfold("no-cpuidle", tmp_path), f"{MODULE}{suffix}: x")
    (root / f"{MODULE}{suffix}").write_bytes(pack(bytes(64 << 20) + MODULE_TEXT))
    tracemalloc.start()
    try:
        assert collect(root)[0].loading.signed is None
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_a_module_that_is_too_large(tmp_path: Path) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"{MODULE}: x")
    os.truncate(root / MODULE, loading.MAX_MODULE + 1)
    assert collect(root)[0].loading.signed is None


KEY = "var/lib/dkms/mok.pub"


@pytest.mark.parametrize(
    "make",
    [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), os.mkdir],
    ids=["pipe", "device", "folder"],
)
def test_a_key_that_is_no_file(make: Callable[[Path], None], tmp_path: Path) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"{SIGNED}\n{OWNER_KEYS}: OTHER")
    (root / KEY).unlink()
    make(root / KEY)
    assert found(root) == []  # whether it is enrolled is not known


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all users may look into."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.usefixtures("paths_that_hide_errors")
def test_a_modules_folder_that_only_root_may_look_into(shared: Path) -> None:
    root = plant(unfold("no-cpuidle", shared), f"{MODULE}: module\n{RELEASE}/build/Makefile: x")
    modules = root / "lib/modules"
    modules.chmod(0o700 if os.geteuid() == 0 else 0)
    before = os.geteuid()
    try:
        if before == 0:
            os.seteuid(65534)
        here = collect(root)[0].loading
    finally:
        os.seteuid(before)
        modules.chmod(0o700)
    assert (here.installed, here.headers, here.signed) == (None, None, None)


def test_a_machine_without_any_modules_folder_has_no_headers(tmp_path: Path) -> None:
    tree = Tree(unfold("no-cpuidle", tmp_path))
    assert loading.read(tree, "6.12.0", running=True).headers is False
    assert loading.read(tree, "6.12.0", running=False).headers is None


def test_a_module_that_was_built_in_the_sources_can_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = plant(unfold("no-cpuidle", tmp_path / "machine"), f"{RELEASE}/build/Makefile: all")
    monkeypatch.setattr("lightsleep.scan.loading.KERNEL", tmp_path / "kernel")
    monkeypatch.setattr("os.geteuid", lambda: 0)

    def running() -> Scan:
        scan, tree = collect(root)
        return replace(scan, loading=loading.read(tree, "6.12.0", running=True))

    built_for_another = plant(tmp_path / "kernel", "cpuidle_lightsleep.ko: vermagic=6.11.0 SMP")
    assert [x.id for x in obstacles(running())] == ["not-built"]
    plant(built_for_another, "cpuidle_lightsleep.ko: vermagic=6.12.0 SMP")
    assert obstacles(running()) == []
    assert "until the next boot" in dict(in_short(running()))["lightsleep"]
    assert found(root) == ["not-built"]  # a recording is of another machine
    plant(root, LOCKED)
    (unsigned,) = obstacles(running())
    assert f"{tmp_path}/kernel/cpuidle_lightsleep.ko is not signed" in unsigned.what
    plant(root, f"{MODULE}: {SIGNATURE}")
    assert "until the next boot" not in dict(in_short(running()))["lightsleep"]


def test_a_module_of_older_sources_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightsleep.scan.loading.KERNEL", tmp_path)
    file = plant(tmp_path, "cpuidle_lightsleep.ko: vermagic=6.12.0 SMP") / "cpuidle_lightsleep.ko"
    assert loading.built_in_sources("6.12.0") == file
    source = plant(tmp_path, "drivers/cpuidle/idle.c: new") / "drivers/cpuidle/idle.c"
    os.utime(source, (0, 0))  # as a package has it
    os.utime(file, (built := source.stat().st_ctime - 1, built))
    assert loading.built_in_sources("6.12.0") is None
    os.utime(file, (built := source.stat().st_ctime + 1, built))
    assert loading.built_in_sources("6.12.0") == file


def test_a_loaded_module_needs_no_file_and_no_signature(tmp_path: Path) -> None:
    plant(unfold("lightsleep-guest", tmp_path), f"{LOCKED}\n{RELEASE}/modules.dep: x")
    plant(tmp_path, "proc/cmdline: module_blacklist=cpuidle_lightsleep")  # of a built-in one
    plant(tmp_path, f"{TDX}\n{OTHER}: 6.1.0\nproc/cpuinfo: bugs : apic_c1e")
    assert found(tmp_path) == []
    assert dict(in_short(collect(tmp_path)[0]))["lightsleep"].startswith("active")


NOHLT = "proc/sys/kernel/arch: aarch64\nproc/cmdline: nohlt"


def test_a_driver_that_the_idle_loop_never_asks_is_not_active(tmp_path: Path) -> None:
    root = plant(unfold("lightsleep-guest", tmp_path), NOHLT)
    assert found(root) == ["idle-option"]
    said = dict(in_short(collect(root)[0]))
    assert said["lightsleep"].startswith("loaded, but the idle loop never asks it: nohlt is on")
    assert "Remove nohlt from the kernel command line" in said["what to do"]


def test_who_is_not_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "not-root" in [x.id for x in obstacles(collect(Path("/"))[0])]
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert "not-root" not in [x.id for x in obstacles(collect(Path("/"))[0])]


@pytest.mark.parametrize("machine", NAMES)
def test_every_machine_is_told_whether_it_could(machine: str, tmp_path: Path) -> None:
    scan = collect(unfold(machine, tmp_path))[0]
    (line, *_) = [text for name, text in in_short(scan) if name == "lightsleep"]
    bound = scan.cpuidle.driver not in (None, "lightsleep")
    assert bound == line.startswith("cannot load: the cpuidle driver")


def test_hardware_drivers_are_no_obstacle_to_unload(tmp_path: Path) -> None:
    (one,) = obstacles(collect(unfold("intel-laptop", tmp_path))[0])
    assert "rmmod" not in one.fix
    assert "no-deeper-than" in one.fix


@pytest.mark.parametrize("guest", [False, True])
def test_of_acpi_idle_only_bare_metal_is_known_to_have_it_besides(
    guest: bool, tmp_path: Path
) -> None:
    """QEMU's guests with MWAIT have no states of ACPI."""
    root = unfold("intel-laptop", tmp_path)
    if guest:
        plant(root, "proc/cpuinfo: flags : fpu hypervisor monitor")
    (one,) = obstacles(collect(root)[0])
    assert one.id == "other-driver"
    assert ("acpi_idle is bound then" in one.fix) != guest
    assert ("cause no exit" in one.fix) == guest


@pytest.mark.parametrize("loaded", [False, True])
def test_haltpoll_gives_way_where_it_can_be_unloaded(loaded: bool, tmp_path: Path) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"{MODULE}: module")
    plant(root, "sys/devices/system/cpu/cpuidle/current_driver: haltpoll")
    if loaded:
        plant(root, "sys/module/cpuidle_haltpoll/initstate: live")
    scan = collect(root)[0]
    (one,) = obstacles(scan)
    assert ("lightsleep enable unloads haltpoll" in one.fix) == loaded
    assert ("built into this kernel" in one.fix) != loaded
    line = dict(in_short(scan))["lightsleep"]
    assert line.startswith("can load (lightsleep enable) in place of haltpoll") == loaded


@pytest.mark.parametrize(
    ("options", "to_remove"),
    [
        ("cpuidle_haltpoll.force=1", "cpuidle_haltpoll.force=1"),
        ("cpuidle-haltpoll.force", "cpuidle_haltpoll.force"),
        ("cpuidle_haltpoll.force=0", None),
        ("cpuidle_haltpoll.force=1 cpuidle_haltpoll.force=N", None),
        ("haltpoll.guest_halt_poll_ns=0", None),
    ],
)
def test_haltpoll_that_is_built_in_can_be_kept_away(
    options: str, to_remove: str | None, tmp_path: Path
) -> None:
    root = plant(unfold("no-cpuidle", tmp_path), f"proc/cmdline: {options}")
    plant(root, "sys/devices/system/cpu/cpuidle/current_driver: haltpoll")
    (one,) = obstacles(collect(root)[0])
    assert "initcall_blacklist=haltpoll_init" in one.fix
    assert (f"Remove {to_remove} from" in one.fix) == ("Remove" in one.fix) == bool(to_remove)


@pytest.mark.parametrize(
    ("planted", "told"),
    [
        (LOCKED, True),
        ("sys/module/module/parameters/sig_enforce: Y", True),
        ("sys/kernel/security/lockdown: [none] integrity confidentiality", False),
    ],
)
def test_a_signature_that_cannot_be_read_is_unknown(
    planted: str, told: bool, tmp_path: Path
) -> None:
    """No package that scan needs unpacks zstd."""
    scan = collect(plant(unfold("no-cpuidle", tmp_path), f"{planted}\n{MODULE}.zst: packed"))[0]
    assert obstacles(scan) == []  # enable tries: the kernel knows
    said = dict(in_short(scan))
    assert said["lightsleep"].startswith("unknown: the kernel ") == told
    assert (f"whether /{MODULE}.zst is signed cannot be read" in said["lightsleep"]) == told
    assert (f"modinfo -F signer /{MODULE}.zst" in said.get("what to do", "")) == told
    assert said["lightsleep"].startswith("can load") != told


def test_a_recording_does_not_tell_whether_the_module_loads(tmp_path: Path) -> None:
    scan = collect(unfold("no-cpuidle", tmp_path))[0]
    assert obstacles(scan) == []
    assert dict(in_short(scan))["lightsleep"].startswith("unknown: whether the module can be")
    plant(tmp_path, "sys/devices/system/cpu/cpuidle/current_driver: haltpoll")
    plant(tmp_path, "sys/module/cpuidle_haltpoll/initstate: live")
    assert "be loaded in place of haltpoll, a" in dict(in_short(collect(tmp_path)[0]))["lightsleep"]


def test_a_kernel_that_loads_no_modules_says_why(tmp_path: Path) -> None:
    root = unfold("no-cpuidle", tmp_path)
    plant(root, "proc/version: Linux")
    built_without = loading.read(Tree(root), "6.12.0", running=True)
    assert (built_without.modules, built_without.modules_disabled) == (False, None)
    scan = collect(root)[0]
    (one,) = obstacles(replace(scan, loading=replace(built_without, root=True)))
    assert (one.id, "CONFIG_MODULES=y" in one.fix) == ("no-modules", True)
    plant(root, "proc/sys/kernel/modules_disabled: 1")
    (one,) = obstacles(collect(root)[0])
    assert "kernel.modules_disabled is 1" in one.what
    assert "CONFIG_MODULES" not in one.fix


def test_the_kernels_are_those_that_dkms_builds_for() -> None:
    text = (ROOT / "kernel/dkms-kernels.sh").read_text()
    limits = dict(re.findall(r'(?m)^BUILD_EXCLUSIVE_(\w+)="(.*)"$', text))
    assert limits == {
        "KERNEL": KERNELS,
        "KERNEL_MIN": OLDEST,
        "KERNEL_MAX": f"{NEWEST}.999",
        "ARCH": f"^({'|'.join(ARCHITECTURES)})$",
    }


@pytest.mark.parametrize(
    ("planted", "option"),
    [
        ("proc/cpuinfo: bugs : apic_c1e", "switch C1E off in the firmware"),
        (f"{TDX}\n{OTHER}: 6.2.0", "use Linux 6.3 or later"),
    ],
)
def test_a_refusal_of_the_driver_is_told_in_its_words(
    planted: str, option: str, tmp_path: Path
) -> None:
    one = obstacles(collect(plant(unfold("no-cpuidle", tmp_path), planted))[0])[0]
    driver = (ROOT / "kernel/drivers/cpuidle/idle_driver.h").read_text()
    assert f'pr_err("{one.what}: {option}\\n");' in driver
    assert f"{one.fix[0].lower()}{one.fix[1:].rstrip('.')}" == option


def test_a_loaded_module_supports_its_kernel(tmp_path: Path) -> None:
    assert found(plant(unfold("lightsleep-guest", tmp_path), f"{OTHER}: 7.9.0")) == []


def test_the_page_names_every_obstacle() -> None:
    page = (ROOT / "docs/scan.md").read_text()
    assert [name for name in RULES if f"| `{name}` |" not in page] == []
