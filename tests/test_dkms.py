# SPDX-License-Identifier: GPL-2.0-only
"""DKMS builds, installs and removes the modules on a machine that was just set up."""

import os
import re
import shutil
from pathlib import Path

import pytest

import lightsleep
from lightsleep.lab import host
from lightsleep.lab.config import ARCHES, KERNELS
from lightsleep.lab.modules import is_source
from lightsleep.lab.roots import sources
from lightsleep.sources import KERNEL

pytestmark = pytest.mark.build

# Without being asked, DKMS installs what users run, and nothing else.
STEPS = """
set -e
cd /root/kernel
kernel=$(ls /lib/modules)
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
make dkms-install KERNEL=$kernel
there cpuidle_lightsleep virtio_poll_source
absent test_cpuidle_latency cpuidle_synthetic
make dkms-remove
absent cpuidle_lightsleep virtio_poll_source
make dkms-install KERNEL=$kernel LIGHTSLEEP_TOOLS=1
there cpuidle_lightsleep virtio_poll_source test_cpuidle_latency cpuidle_synthetic
make dkms-remove
absent cpuidle_lightsleep virtio_poll_source test_cpuidle_latency cpuidle_synthetic
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a package manager's scripts in a chroot")
def test_dkms_installs_and_removes_the_modules(tmp_path: Path) -> None:
    kernel = KERNELS["6.12"]
    headers = kernel.headers.format(debian=ARCHES["x86_64"].debian)
    copy = tmp_path / "kernel"
    for file in KERNEL.rglob("*"):
        if file.is_file() and (is_source(file) or file.suffix == ".conf"):
            (copy / file.relative_to(KERNEL)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy / file.relative_to(KERNEL))
    (tmp_path / "steps").write_text(STEPS)
    host.run(
        [
            *("mmdebstrap", "--mode=root", "--variant=apt", f"--include={headers},dkms,make"),
            f'--customize-hook=cp -r {copy} {tmp_path}/steps "$1/root/"',
            '--customize-hook=chroot "$1" sh /root/steps',
            *(kernel.suite, "/dev/null", *sources(kernel.suite, kernel.target)),
        ],
        "installing with DKMS",
    )


def built(conf: str) -> set[str]:
    """Return the modules that a configuration of DKMS names."""
    text = (KERNEL / conf).read_text()
    return set(re.findall(r'BUILT_MODULE_NAME\[\d+\]="(\w+)"', text))


def test_the_versions_agree() -> None:
    text = (KERNEL / "dkms.conf").read_text()
    assert f'PACKAGE_VERSION="{lightsleep.__version__}"' in text


def test_users_get_what_they_run_and_developers_their_tools() -> None:
    assert built("dkms.conf") == {"cpuidle_lightsleep", "virtio_poll_source"}
    assert built("dkms-tools.conf") == {"test_cpuidle_latency", "cpuidle_synthetic"}
    kbuild = (KERNEL / "Kbuild").read_text()
    for module in built("dkms.conf") | built("dkms-tools.conf"):
        assert f" += {module}.o\n" in kbuild
