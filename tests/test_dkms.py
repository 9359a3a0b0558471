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

STEPS = """
set -e
cd /root/kernel
kernel=$(ls /lib/modules)
make dkms-install KERNEL=$kernel
for module in cpuidle_lightsleep cpuidle_synthetic test_cpuidle_latency virtio_poll_source; do
    modinfo -k $kernel -F license $module | grep -qx GPL
done
make dkms-remove
! modinfo -k $kernel cpuidle_lightsleep
! modinfo -k $kernel cpuidle_synthetic
! modinfo -k $kernel test_cpuidle_latency
! modinfo -k $kernel virtio_poll_source
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="runs a package manager's scripts in a chroot")
def test_dkms_installs_and_removes_the_modules(tmp_path: Path) -> None:
    kernel = KERNELS["6.12"]
    headers = kernel.headers.format(debian=ARCHES["x86_64"].debian)
    copy = tmp_path / "kernel"
    for file in KERNEL.rglob("*"):
        if file.is_file() and (is_source(file) or file.name == "dkms.conf"):
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


def test_the_versions_agree() -> None:
    text = (KERNEL / "dkms.conf").read_text()
    assert f'PACKAGE_VERSION="{lightsleep.__version__}"' in text
    kbuild = (KERNEL / "Kbuild").read_text()
    modules = re.findall(r'BUILT_MODULE_NAME\[\d+\]="(\w+)"', text)
    assert {"cpuidle_lightsleep", "virtio_poll_source"} < set(modules)
    for module in modules:
        assert f" += {module}.o\n" in kbuild
