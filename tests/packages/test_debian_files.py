# SPDX-License-Identifier: GPL-2.0-only
"""The packages hold what they need: every source of the modules, and documentation as it is."""

from __future__ import annotations

import os
import re
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest
from paths import ROOT

KERNEL = ROOT / "kernel"
PACKAGES = {
    "lightsleep-dkms": {"cpuidle_lightsleep", "virtio_poll_source"},
    "lightsleep-test-dkms": {"cpuidle_synthetic", "test_cpuidle_latency"},
}


def needed(modules: set[str]) -> set[Path]:
    """Return the sources of modules, and the headers of ours that these include."""
    kbuild = (KERNEL / "Kbuild").read_text().replace("\\\n", " ")
    lines = re.findall(r"^(\w+)-\S*(?: \S+\))? [:+]= (.*)$", kbuild, re.MULTILINE)
    found: set[Path] = set()
    ahead = [
        KERNEL / Path(name).with_suffix(".c")
        for module, names in lines
        if module in modules
        for name in names.split()
    ]
    assert len(ahead) >= len(modules)
    while ahead:
        file = ahead.pop()
        if file not in found:
            found.add(file)
            text = file.read_text()
            ahead += [file.parent / name for name in re.findall(r'#include "([\w.]+)"', text)]
            shared = [KERNEL / "include" / x for x in re.findall(r"#include <([\w./]+)>", text)]
            ahead += [header for header in shared if header.exists()]
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_source_is_left_out(package: str) -> None:
    lines = (ROOT / f"debian/{package}.install").read_text().splitlines()
    patterns = [line.split()[0] for line in lines]
    for file in needed(PACKAGES[package]):
        path = str(file.relative_to(ROOT))
        held = any(fnmatch(path, x) or fnmatch(path, f"{x}/*") for x in patterns)
        assert held, f"{package} lacks {path}"


def documentation() -> set[Path]:
    """Return the files that the package of the command has as documentation."""
    names = (ROOT / "debian/lightsleep.docs").read_text().split()
    there = {y for x in names for y in (ROOT / x, *(ROOT / x).rglob("*")) if y.is_file()}
    assert there
    return there


def test_pages_are_as_in_the_source_tree() -> None:
    """Debhelper gzips them."""
    found = re.search(r"(?m)^\tdh_compress (.*)$", (ROOT / "debian/rules").read_text())
    left = [word.removeprefix("-X") for word in (found[1].split() if found else [])]
    for file in documentation():
        if file.suffix not in (".png", ".svg"):
            assert any(x in str(file.relative_to(ROOT)) for x in left), file


def test_modes_are_those_of_the_package_and_not_of_the_clone(tmp_path: Path) -> None:
    """Debhelper takes the right to execute from all documentation, but sets no mode with -X."""
    rules = (ROOT / "debian/rules").read_text()
    assert not re.search("dh_fixperms.*-X", rules)
    (set_again,) = re.findall(r"(?m)^execute_after_dh_fixperms:\n\t(.*)$", rules)
    folder = tmp_path / "debian/lightsleep/usr/share/doc/lightsleep"
    folder.mkdir(parents=True)
    # The profile nodoc leaves documentation out.
    subprocess.run(["sh", "-c", set_again], check=True, cwd=tmp_path)
    names = [x.relative_to(ROOT) for x in documentation()]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch(0o644)
    subprocess.run(["sh", "-c", set_again], check=True, cwd=tmp_path)
    for name in names:
        modes = [os.access(top / name, os.X_OK) for top in (folder, ROOT)]
        assert modes[0] == modes[1], name


def test_our_page_is_not_the_changelog_of_the_package() -> None:
    """Debhelper would install it as changelog.gz, which has another syntax."""
    rules = (ROOT / "debian/rules").read_text()
    assert "\tdh_installchangelogs -XCHANGELOG.md\n" in rules


def beside_the_pages() -> set[str]:
    """Return what else the folder of the documentation has, as paths in the source tree."""
    folder = "usr/share/doc/lightsleep/"
    files = [
        name
        for name, *target in map(str.split, (ROOT / "debian/lightsleep.install").open())
        if target and f"{target[0]}/{Path(name).name}" == folder + name
    ]
    package = [
        link.removeprefix(folder)
        for target, link in map(str.split, (ROOT / "debian/lightsleep.links").open())
        if target == f"usr/lib/python3/dist-packages/{link.removeprefix(folder)}"
    ]
    assert files
    assert package == ["lightsleep"]
    return {*files, *package}


def test_links_lead_to_what_the_package_has() -> None:
    files = documentation()
    others = beside_the_pages()
    for page in files:
        if page.suffix != ".md":
            continue
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text()):
            target = Path(os.path.normpath(page.parent / link))
            name = str(target.relative_to(ROOT))
            there = target in files or any(target in x.parents for x in files)
            assert there or name in others or name.split("/")[0] in others, f"{page}: {link}"
