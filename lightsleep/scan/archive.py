# SPDX-License-Identifier: GPL-2.0-only
"""Packs the files a scan read, and nothing else, into an archive that says nothing of its owner.

Most files hold numbers and names chosen by the kernel. The few that may tell more are cut to
what a scan uses: only options that touch idle, a kernel release without its local part, of
/proc/cpuinfo and DMI only the matching lines. Time stamps and owners in the archive are zero.
"""

import gzip
import io
import re
import tarfile
from collections.abc import Callable
from pathlib import Path

from lightsleep.files import write_bytes
from lightsleep.scan.collect import (
    HYPERVISORS,
    INTERRUPTS,
    OS_RELEASE,
    PARTITION_NAME,
    idle_options,
    queue_rows,
)
from lightsleep.scan.tree import Tree

CPUINFO_KEYS = r"(?m)^(?:processor|model name|cpu|CPU part|machine|flags|bugs)[ \t]*:.*\n"
CPU_WORDS = {"flags": {"hypervisor", "monitor", "tdx_guest"}, "bugs": {"apic_c1e"}}


def _cmdline(text: str) -> str:
    options = idle_options(text).items()
    words = (name if value is None else f'{name}="{value}"' for name, value in options)
    return " ".join(words) + "\n"


def _release(text: str) -> str:
    version = re.match(r"\d+\.\d+(\.\d+)?(-rc\d+)?", text)
    return f"{version[0] if version else ''}\n"


def _cpuinfo(text: str) -> str:
    """Return what a scan uses of the first CPU, and the machine line that ppc64 has at the end."""
    seen: dict[str, str] = {}
    for line in re.findall(CPUINFO_KEYS, text):
        key, _, value = (part.strip() for part in line.partition(":"))
        seen.setdefault(key, value)
    for key, used in CPU_WORDS.items():
        if key in seen:
            seen[key] = " ".join(word for word in seen[key].split() if word in used)
    return "".join(f"{key}\t: {value}\n" for key, value in seen.items())


def _interrupts(text: str) -> str:
    """Return the rows of virtio queues: others name a machine's devices."""
    return "".join(f"{row.text}\n" for row in queue_rows(text.encode()))


def _only_hypervisor(path: str) -> Callable[[str], str]:
    patterns = [pattern for other, pattern, _ in HYPERVISORS if other == path]

    def cut(text: str) -> str:
        matches = (re.search(pattern, text) for pattern in patterns)
        return "".join(f"{match[0]}\n" for match in matches if match)

    return cut


ANONYMISE: dict[str, Callable[[str], str]] = {
    "proc/cmdline": _cmdline,
    OS_RELEASE: _release,
    "proc/cpuinfo": _cpuinfo,
    INTERRUPTS: _interrupts,
    **{
        path: _only_hypervisor(path)
        for path, _, _ in HYPERVISORS
        if path.startswith(("sys/class/dmi/", "proc/device-tree/"))
    },
    # That there is one tells of PowerVM.
    PARTITION_NAME: lambda text: "recorded\n" if text else "",
}


def record(tree: Tree, file: Path) -> int:
    """Write the files that were read from ``tree`` to ``file``; return how many.

    Raises LightsleepError where ``file`` cannot be written; an older one then stays as it is.
    """
    packed = io.BytesIO()
    with (
        # An empty name and time: gzip would keep both.
        gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path in sorted(tree.read):
            content = anonymise(path, tree.read[path])
            member = tarfile.TarInfo(path)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    write_bytes(file, packed.getvalue())
    return len(tree.read)


def anonymise(path: str, content: bytes) -> bytes:
    """Return what of a file may be given away."""
    cut = ANONYMISE.get(path)
    return content if cut is None else cut(content.decode("utf-8", errors="replace")).encode()
