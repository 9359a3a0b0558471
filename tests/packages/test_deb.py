# SPDX-License-Identifier: GPL-2.0-only
"""The Debian packages: built, installed, upgraded and purged in Debian 12 and 13."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import comparisons
import debian_roots
import measurements
import pytest
from debian_roots import Root, content
from paths import ROOT

from lightsleep.enable.boot_files import HEADER
from lightsleep.files import write_json
from lightsleep.report.plots import MIN_ECDF

DRIVER = "cpuidle_lightsleep", "virtio_poll_source"
TEST = "test_cpuidle_latency", "cpuidle_synthetic"
SKIPPED = {
    "bookworm": r"lightsleep(?:-test)?: kernel 9.9.9-cloud-amd64 is not supported: skipped",
    "trixie": r"for module (lightsleep\S*) includes a BUILD_EXCLUSIVE directive",
}
"""What DKMS says of each of the two when it skips a kernel."""

DKMS_OWN = {"var/lib/dkms/mok.key", "var/lib/dkms/mok.pub"}
"""The key that DKMS makes for the machine when it first builds a module, whoever's it is."""

UNSUPPORTED = "9.9.9-cloud-amd64"
WITHOUT_IDLE = "6.12.999-noidle"
DOES_NOT_BUILD = "6.12.997-cloud-amd64"
WITHOUT_HEADERS = "6.12.996-cloud-amd64"

pytestmark = [
    pytest.mark.build,
    pytest.mark.skipif(os.geteuid() != 0, reason="runs a package manager's scripts in a chroot"),
]


def build(root: Root, number: int, changed: str = "") -> str:
    """Build the packages inside, in /root/NUMBER, and return their version."""
    source = root.path / f"root/{number}/source"
    argv = [sys.executable, f"{ROOT}/scripts/debian_source.py", str(source)]
    subprocess.run(argv, check=True, capture_output=True)
    # As in a clone of a user whose umask is 077.
    subprocess.run(["chmod", "-R", "go=", source], check=True)
    changelog = source / "debian/changelog"
    text = re.sub(r"\((.*)\)", rf"(\1.{number})", changelog.read_text(), count=1)
    changelog.write_text(text)
    if changed:
        with (source / "kernel/drivers/cpuidle/cpuidle-lightsleep.c").open("a") as driver:
            driver.write(changed)
    root.run(f"cd /root/{number}/source && dpkg-buildpackage --build=binary --no-sign")
    found = re.search(r"\((.*)\)", text)
    assert found
    return found[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Root, str, str]]:
    """Return the root in which two versions were built, and these."""
    with debian_roots.root("bookworm", tmp_path_factory.mktemp("built")) as root:
        first = build(root, 1)
        second = build(root, 2, '\nMODULE_INFO(changed, "by the test");\n')
        yield root, first, second


def test_lintian_finds_nothing(built: tuple[Root, str, str]) -> None:
    root, _, _ = built
    said = root.run(
        "cd /root/1 && lintian --allow-root --fail-on error,warning --display-level '>=warning' "
        "*.changes"
    )
    assert said == ""


def test_documentation_is_as_in_the_source_tree(built: tuple[Root, str, str]) -> None:
    """Links lead from page to page, and to what is in contrib; tuned runs a script there."""
    root, _, _ = built
    root.run("dpkg-deb -x /root/1/lightsleep_*.deb /root/1/unpacked")
    there = root.path / "root/1/unpacked/usr/share/doc/lightsleep"
    folders = [ROOT / name for name in ("docs", "contrib")]
    files = [x for folder in folders for x in folder.rglob("*") if x.is_file()]
    for file in [*ROOT.glob("*.md"), *files]:
        assert content(there / file.relative_to(ROOT)) == content(file)
    unpacked = there.parents[3]
    profile = unpacked / "usr/lib/tuned/lightsleep"
    assert os.access(profile.parent / profile.readlink() / "script.sh", os.X_OK)
    assert list(unpacked.glob("**/systemd/system/lightsleep-watch.service"))
    package = (there / "lightsleep").readlink()
    assert (there / package / "scan/scan.schema.json").is_file()


def test_modes_are_not_those_of_the_clone(built: tuple[Root, str, str]) -> None:
    root, _, _ = built
    listed = root.run("for package in /root/1/*.deb; do dpkg-deb --contents $package; done")
    modes = {line.split()[0] for line in listed.splitlines() if not line.startswith("l")}
    assert modes == {"drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x"}


def modules(root: Root, kernel: str) -> set[str]:
    """Return which of our modules are installed for a kernel."""
    found = (root.path / "lib/modules" / kernel / "updates").rglob("*.ko*")
    return {x.name.split(".")[0] for x in found}


def add_kernel(root: Root, like: str, release: str, config: str | None = None) -> None:
    """Add a kernel whose headers are those of another, but for its configuration."""
    headers = root.path / "usr/src/linux-headers-test" / release
    headers.mkdir(parents=True)
    own = root.run(f"readlink -f /lib/modules/{like}/build").strip()
    for file in (root.path / own.lstrip("/")).iterdir():
        (headers / file.name).symlink_to(f"{own}/{file.name}")
    if config is not None:
        (headers / "include").unlink()
        (headers / "include/config").mkdir(parents=True)
        for name in (".config", "include/config/auto.conf"):  # an old DKMS reads the first
            (headers / name).unlink(missing_ok=True)
            (headers / name).write_text(config)
    (root.path / "lib/modules" / release).mkdir()
    build = root.path / "lib/modules" / release / "build"
    build.symlink_to(f"/usr/src/linux-headers-test/{release}")
    root.run(f"depmod {release} 2> /dev/null")


@contextlib.contextmanager
def tried(suite: str, origin: Root, folder: Path) -> Iterator[Root]:
    """Hand out a root of a suite with the packages in /root: in bookworm's, they were built."""
    if suite == "bookworm":
        yield origin
        return
    with debian_roots.root(suite, folder) as root:
        for number in (1, 2):
            (root.path / f"root/{number}").mkdir()
            for package in (origin.path / f"root/{number}").glob("*.deb"):
                target = root.path / f"root/{number}" / package.name
                target.write_bytes(package.read_bytes())
        yield root


@pytest.mark.parametrize(
    "suite", [pytest.param("bookworm"), pytest.param("trixie", marks=pytest.mark.more)]
)
def test_from_the_first_installation_to_the_purge(
    suite: str, built: tuple[Root, str, str], tmp_path: Path
) -> None:
    origin, first, second = built
    with tried(suite, origin, tmp_path) as root:
        (kernel,) = (x.name for x in (root.path / "lib/modules").iterdir())
        add_kernel(root, kernel, UNSUPPORTED)
        add_kernel(root, kernel, WITHOUT_IDLE, "# CONFIG_CPU_IDLE is not set\n")
        root.run(f"depmod {kernel} 2> /dev/null")
        (root.path / "etc/modules-load.d").mkdir(exist_ok=True)
        before = root.snapshot()

        root.run("dpkg -i /root/1/*.deb")
        assert modules(root, kernel) == {*DRIVER, *TEST}
        assert modules(root, UNSUPPORTED) == modules(root, WITHOUT_IDLE) == set()
        assert root.run("lightsleep --sources").strip().endswith("dist-packages/lightsleep/kernel")
        info = f"modinfo -k {kernel} -F changed cpuidle_lightsleep"
        assert root.run(info) == ""

        root.run("dpkg -i /root/2/*.deb")
        assert root.run(info) == "by the test\n"
        assert modules(root, kernel) == {*DRIVER, *TEST}
        assert not list((root.path / "usr/src").glob(f"lightsleep*-{first}"))
        assert len(list((root.path / "usr/src").glob(f"lightsleep*-{second}"))) == 2

        # Kernels come and go: one that is supported, and one that is not.
        add_kernel(root, kernel, "6.12.998-cloud-amd64")
        root.run("/etc/kernel/postinst.d/dkms 6.12.998-cloud-amd64")
        assert modules(root, "6.12.998-cloud-amd64") >= set(DRIVER)
        root.run(f"/etc/kernel/postinst.d/dkms {WITHOUT_IDLE}")
        said = root.run(f"/etc/kernel/postinst.d/dkms {UNSUPPORTED}")
        assert modules(root, UNSUPPORTED) == modules(root, WITHOUT_IDLE) == set()
        assert len(set(re.findall(SKIPPED[suite], said))) == 2
        root.run("/etc/kernel/prerm.d/dkms 6.12.998-cloud-amd64")
        assert modules(root, "6.12.998-cloud-amd64") == set()
        root.run("rm -r /lib/modules/6.12.998* /usr/src/linux-headers-test/6.12.998*")
        (root.path / "lib/modules" / WITHOUT_HEADERS).mkdir()
        said = root.run(f"dkms autoinstall -k {WITHOUT_HEADERS} 2>&1 || true")
        assert re.search("kernel headers for (this )?kernel", said)
        assert "not supported" not in said
        root.run(f"rm -r /lib/modules/{WITHOUT_HEADERS}")

        # What "enable --persist" leaves.
        kept = root.path / "etc/modules-load.d/lightsleep.conf"
        kept.write_text(f"{HEADER}\ncpuidle_lightsleep\n")
        packages = "lightsleep lightsleep-dkms lightsleep-test-dkms"
        root.run(f"dpkg --remove {packages}")
        assert not kept.exists()
        assert modules(root, kernel) == set()
        assert not list((root.path / "usr/src").glob("lightsleep*"))
        assert not list((root.path / "usr/bin").glob("lightsleep*"))
        root.run(f"dpkg --purge {packages}")
        after = root.snapshot()
        changed = {x for x in before.keys() | after.keys() if before.get(x) != after.get(x)}
        assert changed <= DKMS_OWN


@pytest.mark.parametrize(
    "suite", [pytest.param("bookworm"), pytest.param("trixie", marks=pytest.mark.more)]
)
def test_a_kernel_that_a_failed_build_left_unconfigured_is_finished_without_us(
    suite: str, built: tuple[Root, str, str], tmp_path: Path
) -> None:
    """Its package runs DKMS, and fails with it; docs/packages.md says how to go on."""
    origin, _, _ = built
    with tried(suite, origin, tmp_path) as root:
        there = {x.name for x in (root.path / "lib/modules").iterdir()}
        (kernel,) = there - {UNSUPPORTED, WITHOUT_IDLE}
        root.run("dpkg -i /root/1/lightsleep_*.deb /root/1/lightsleep-dkms_*.deb")
        add_kernel(root, kernel, DOES_NOT_BUILD)
        headers = root.path / "usr/src/linux-headers-test" / DOES_NOT_BUILD
        makefile = (headers / "Makefile").readlink()
        (headers / "Makefile").unlink()
        (headers / "Makefile").write_text(
            f"export KCFLAGS := -include /nonexistent.h\ninclude {makefile}\n"
        )
        control = root.path / "root/kernel/DEBIAN"
        control.mkdir(parents=True)
        (control / "control").write_text(
            "Package: linux-image-test\nVersion: 1\nArchitecture: all\n"
            "Maintainer: a test <test@lightsleep.invalid>\nDescription: a kernel\n"
        )
        hook = f"#!/bin/sh\nexec /etc/kernel/postinst.d/dkms {DOES_NOT_BUILD}\n"
        (control / "postinst").write_text(hook)
        (control / "postinst").chmod(0o755)
        root.run("dpkg-deb --build /root/kernel /root/linux-image-test.deb")

        said = root.run("dpkg -i /root/linux-image-test.deb 2>&1 && exit 1 || true")
        status = "dpkg-query -W -f '${db:Status-Abbrev}' linux-image-test"
        assert root.run(status) == "iF "
        assert re.search(r"Consult /var/lib/dkms/lightsleep/\S+/build/make.log", said)
        log = root.run("cat /var/lib/dkms/lightsleep/*/build/make.log")
        assert "/nonexistent.h: No such file" in log
        assert "To finish: apt purge lightsleep-dkms, then apt --fix-broken install" in log
        root.run("apt-get -q -y purge lightsleep-dkms")
        root.run("apt-get -q -y --fix-broken install")
        assert root.run(status) == "ii "

        root.run("dpkg --purge linux-image-test lightsleep")
        root.run(f"rm -r /root/kernel /lib/modules/{DOES_NOT_BUILD}")
        root.run(f"rm -r /usr/src/linux-headers-test/{DOES_NOT_BUILD}")


def test_a_report_is_drawn_with_the_packages_that_the_page_names(
    built: tuple[Root, str, str],
) -> None:
    """Debian 12 has an older matplotlib than pip installs for the other tests."""
    page = (ROOT / "docs/packages.md").read_text()
    assert f"\n    sudo apt install {' '.join(debian_roots.REPORT)}\n" in page
    root, _, _ = built
    root.run("dpkg -i /root/1/lightsleep_*.deb")
    write_json(root.path / "root/m.json", measurements.made_up((1,), ("ipi",)).document())
    write_json(root.path / "root/c.json", comparisons.made_up(MIN_ECDF, metrics=1).document())
    root.run("cd /root && lightsleep report m.json -o m.html && lightsleep report c.json -o c.html")
    drawn = [(root.path / f"root/{name}.html").read_text().count("<svg") for name in "mc"]
    assert drawn == [1, 2]
    root.run("dpkg --purge lightsleep")
