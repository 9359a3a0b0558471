# SPDX-License-Identifier: GPL-2.0-only
"""DKMS builds, installs and removes the modules on a machine that was just set up."""

import os
import re
import shutil
from pathlib import Path

import debian_roots
import pytest

import lightsleep
from lightsleep.lab import host
from lightsleep.lab.kernels.modules import is_source
from lightsleep.sources import KERNEL

pytestmark = pytest.mark.build

# Without being asked, DKMS installs what users run, and nothing else.
STEPS = """
cd /root/kernel
kernel=$(ls /lib/modules)
find . | sort > /tmp/sources
there() {
    for module; do
        modinfo -k $kernel -F license $module | grep -qx GPL
    done
}
absent() {
    for module; do
        ! modinfo -k $kernel $module 2> /dev/null || exit 1
    done
}
version=$(sed -n 's/^PACKAGE_VERSION="\\(.*\\)"/\\1/p' dkms.conf)
mkdir -p /usr/lib/dracut/dracut.conf.d
sed -i 's/^PACKAGE_VERSION=.*/PACKAGE_VERSION="0.0.1"/' dkms.conf
make KERNEL=$kernel
make dkms-install KERNEL=$kernel
there cpuidle_lightsleep virtio_poll_source
absent test_cpuidle_latency cpuidle_synthetic
# Another kernel has it, too.
mkdir /lib/modules/6.12.0-other
cp -a /lib/modules/$kernel/build /lib/modules/$kernel/modules.* /lib/modules/6.12.0-other
dkms install lightsleep/0.0.1 -k 6.12.0-other
sed -i "s/^PACKAGE_VERSION=.*/PACKAGE_VERSION=\\"$version\\"/" dkms.conf
# What does not build replaces nothing.
cp drivers/cpuidle/cpuidle-lightsleep.c /tmp/driver.c
echo '#error never builds' >> drivers/cpuidle/cpuidle-lightsleep.c
! make dkms-install KERNEL=$kernel > /tmp/said 2>&1 || exit 1
grep -q 'error never builds' /tmp/said
cp /tmp/driver.c drivers/cpuidle/cpuidle-lightsleep.c
test "$(dkms status | grep -c 'lightsleep/0.0.1, .*: installed')" = 2
there cpuidle_lightsleep virtio_poll_source
echo 'MODULE_INFO(again, "yes");' >> drivers/cpuidle/cpuidle-lightsleep.c
# What was built here before is no part of it, and an older version goes.
make dkms-install KERNEL=$kernel LIGHTSLEEP_TOOLS=1
test "$(ls -d /usr/src/lightsleep-[0-9]*)" = /usr/src/lightsleep-$version
! dkms status | grep -F 0.0.1
grep -q cpuidle_lightsleep /usr/lib/dracut/dracut.conf.d/90-lightsleep.conf
for each in $kernel 6.12.0-other; do
    modinfo -k $each -F again cpuidle_lightsleep | grep -qx yes
done
# From where DKMS has its sources, it would remove those first.
! make -C /usr/src/lightsleep-$version dkms-install KERNEL=$kernel || exit 1
test -e /usr/src/lightsleep-$version/Makefile
there cpuidle_lightsleep virtio_poll_source test_cpuidle_latency cpuidle_synthetic
# What a package brought stays as it is, whatever its version.
mkdir /usr/src/lightsleep-0.0.2~1.gabc
echo /usr/src/lightsleep-0.0.2~1.gabc >> /var/lib/dpkg/info/make.list
! make dkms-install KERNEL=$kernel || exit 1
there cpuidle_lightsleep virtio_poll_source
rmdir /usr/src/lightsleep-0.0.2~1.gabc
echo /usr/src/lightsleep-$version >> /var/lib/dpkg/info/make.list
! make dkms-install KERNEL=$kernel || exit 1
make dkms-remove
there cpuidle_lightsleep virtio_poll_source
sed -i '\\,^/usr/src/lightsleep-,d' /var/lib/dpkg/info/make.list
make dkms-remove
absent cpuidle_lightsleep virtio_poll_source test_cpuidle_latency cpuidle_synthetic
test -z "$(ls /usr/lib/dracut/dracut.conf.d)"
# What was built here goes without any headers.
test -e cpuidle_lightsleep.ko
make clean KERNEL=9.9.9
find . | sort | diff /tmp/sources -
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a package manager's scripts in a chroot")
def test_dkms_installs_and_removes_the_modules(tmp_path: Path) -> None:
    with debian_roots.root("bookworm", tmp_path) as root:
        copy = root.path / "root/kernel"
        for file in KERNEL.rglob("*"):
            if file.is_file() and (is_source(file) or file.suffix in (".conf", ".sh")):
                (copy / file.relative_to(KERNEL)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copy / file.relative_to(KERNEL))
        root.run(STEPS)


def built(conf: str) -> set[str]:
    """Return the modules that a configuration of DKMS names."""
    text = (KERNEL / conf).read_text()
    return set(re.findall(r'BUILT_MODULE_NAME\[\d+\]="(\w+)"', text))


EACH = pytest.mark.parametrize("conf", ["dkms.conf", "dkms-test.conf"])


@EACH
def test_the_versions_agree(conf: str) -> None:
    text = (KERNEL / conf).read_text()
    assert f'PACKAGE_VERSION="{lightsleep.__version__}"' in text


def test_old_and_new_dkms_skip_the_same_kernels() -> None:
    text = (KERNEL / "dkms-kernels.sh").read_text()
    given = dict(re.findall(r'(?m)^BUILD_EXCLUSIVE_(KERNEL\w*)="(.*)"$', text))
    first, last = (tuple(map(int, given[f"KERNEL_{x}"].split("."))) for x in ("MIN", "MAX"))
    releases = {(x, y): f"{x}.{y}" for x in (4, 5, 6, 7, 8, 61) for y in range(20)}
    for suffix in (".9-rt", "-amd64", "+deb14-amd64", "~rc5-amd64", ""):
        by_pattern = {x for x, y in releases.items() if re.search(given["KERNEL"], y + suffix)}
        assert by_pattern == {x for x in releases if first <= x <= last}
    assert by_pattern >= {(6, 1), (6, 12), (7, 2), (7, 3)}
    assert not by_pattern & {(5, 10), (7, 4), (61, 2)}


def with_headers(kernel: Path, config: str) -> None:
    """Write the configuration that the headers of a kernel have."""
    (kernel / "build").mkdir()
    (kernel / "build/.config").write_text(config)


def asked(conf: str, arch: str, kernel: Path) -> str:
    """Return what new and old versions of DKMS do there, in this order: "built" or "skipped"."""
    script = f"""
        uname() {{ echo {arch}; }}
        . {KERNEL / conf}
        [[ {arch} =~ $BUILD_EXCLUSIVE_ARCH ]] && ours=built || ours=skipped
        eval "$(declare -f excluded | sed 's,/lib/modules/$1,{kernel},')"
        excluded 6.12.1-amd64 && old=skipped || old=built
        echo $ours $old
    """
    return host.run(["bash", "-c", script], "reading dkms.conf").strip()


@EACH
@pytest.mark.parametrize(
    ("arch", "answer"),
    [
        ("x86_64", "built built"),
        ("aarch64", "built built"),
        ("ppc64le", "built built"),
        ("riscv64", "skipped skipped"),
        ("armv7l", "skipped skipped"),
    ],
)
def test_architectures_that_the_modules_do_not_know_are_skipped(
    conf: str, arch: str, answer: str, tmp_path: Path
) -> None:
    with_headers(tmp_path, "CONFIG_CPU_IDLE=y\nCONFIG_VIRTIO=m\nCONFIG_NET=y\n")
    assert asked(conf, arch, tmp_path) == answer


@EACH
def test_a_kernel_whose_headers_are_missing_is_not_called_unsupported(
    conf: str, tmp_path: Path
) -> None:
    """DKMS says that they are missing, if it is let to try."""
    assert asked(conf, "x86_64", tmp_path) == "built built"
    with_headers(tmp_path, "CONFIG_VIRTIO=m\nCONFIG_NET=y\n")
    assert asked(conf, "x86_64", tmp_path) == "built skipped"


def test_users_get_what_they_run_and_developers_their_tools() -> None:
    assert built("dkms.conf") == {"cpuidle_lightsleep", "virtio_poll_source"}
    assert built("dkms-test.conf") == {"test_cpuidle_latency", "cpuidle_synthetic"}
    kbuild = (KERNEL / "Kbuild").read_text()
    for module in built("dkms.conf") | built("dkms-test.conf"):
        assert f" += {module}.o\n" in kbuild
