# SPDX-License-Identifier: GPL-2.0-only
"""Damaged and foreign files of every format: an error that names the file and says why, or rows.

Each reader meets files that were cut off, have flipped bits, are empty, have their bytes in the
other order, miss a part or have one twice, or turn into another format. It may take some seconds
and an amount of memory that does not depend on what the file says; anything else fails the test.

trace-cmd and perf read their own formats. Where one of them dies of a damaged file, that is an
error of ours, in words.
"""

from __future__ import annotations

import gzip
import json
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from recordings import PIPE, RECORDINGS, histogram_document, page_of

from lightsleep.document import load
from lightsleep.errors import LightsleepError
from lightsleep.periods import histogram, programs
from lightsleep.periods.source import open_recording
from lightsleep.periods.table import write_parquet
from lightsleep.record import sidecar

TIMES = 12_000
"""Files in make check-more, of all formats together."""

FEW = 40
"""Files of each format in make check."""

SECONDS = 20.0
SILENT_S = 5.0
"""In place of the product's minute."""

BYTES = 3 << 30
"""Memory for data; what Python, numpy and pyarrow need before they read anything is in it."""


def text_of(name: str, lines: int = 400) -> bytes:
    """Return the first lines of a fixture."""
    whole = gzip.decompress((RECORDINGS / name).read_bytes())
    return b"".join(whole.splitlines(keepends=True)[:lines])


def parquet(folder: Path) -> bytes:
    plain, table = folder / "plain.txt", folder / "plain.parquet"
    plain.write_bytes(text_of("pipe.txt.gz"))
    for _ in write_parquet(open_recording(plain), table):
        pass
    plain.unlink()
    return table.read_bytes()


def converted(folder: Path) -> bytes:
    """Return the trace.dat in the other version, as trace-cmd converts it."""
    six, seven = folder / "six.dat", folder / "seven.dat"
    six.write_bytes(gzip.decompress((RECORDINGS / "trace-v6.dat.gz").read_bytes()))
    command = ["trace-cmd", "convert", "--file-version", "7", "-i", str(six), "-o", str(seven)]
    subprocess.run(command, check=True, capture_output=True)
    return seven.read_bytes()


def zipped(name: str) -> Callable[[Path], bytes]:
    return lambda _folder: gzip.decompress((RECORDINGS / name).read_bytes())


def of_perfetto(**style: Any) -> Callable[[Path], bytes]:
    def made(_folder: Path) -> bytes:
        from perfetto_traces import Style, traced  # it skips a test where the package is missing

        return traced(text_of("pipe.txt.gz").decode().splitlines(), Style(**style))

    return made


FORMATS: dict[str, Callable[[Path], bytes]] = {
    "trace-cmd.txt": lambda _: text_of("pipe.txt.gz"),
    "ftrace.txt": lambda _: text_of("ftrace.txt.gz"),
    "perf-script.txt": lambda _: text_of("perf-script.txt.gz"),
    "trace.txt.gz": lambda _: gzip.compress(text_of("pipe.txt.gz"), mtime=0),
    "systrace.html": lambda _: page_of(text_of("pipe.txt.gz")).replace(b"x" * 300_000, b"x" * 300),
    "periods.parquet": parquet,
    "plain.pftrace": of_perfetto(),
    "compact.pftrace": of_perfetto(compact=True),
    "zlib.pftrace": of_perfetto(described=False, codec="zlib", events=20),
    "zstd.pftrace": of_perfetto(compact=True, codec="zstd", events=20),
    "trace-v6.dat": zipped("trace-v6.dat.gz"),
    "trace-v7.dat": converted,
    "perf.data": zipped("perf.data.gz"),
    "described.txt.json": lambda _: sidecar.beside(PIPE).read_bytes(),
    "histogram.json": lambda _: json.dumps(histogram_document()).encode(),
}
PROGRAMS = {"trace-v6.dat": "trace-cmd", "trace-v7.dat": "trace-cmd", "perf.data": "perf"}


def flipped(data: bytes, chance: random.Random) -> bytes:
    copy = bytearray(data)
    for _ in range(chance.choice((1, 1, 3, 20))):
        copy[chance.randrange(len(copy))] ^= 1 << chance.randrange(8)
    return bytes(copy)


def flipped_early(data: bytes, chance: random.Random) -> bytes:
    """Damage the head, where formats say how long things are."""
    copy = bytearray(data)
    for _ in range(chance.choice((1, 2, 4))):
        copy[chance.randrange(min(len(copy), 600))] ^= 1 << chance.randrange(8)
    return bytes(copy)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def swapped(data: bytes, chance: random.Random) -> bytes:
    """Return words of 2, 4 or 8 bytes in the other order, from somewhere on."""
    width, begin = chance.choice((2, 4, 8)), chance.choice((0, chance.randrange(len(data))))
    words = range(begin, len(data), width)
    return data[:begin] + b"".join(data[at : at + width][::-1] for at in words)


def spliced(data: bytes, chance: random.Random) -> bytes:
    """Return it without a part, with one twice, or with one of zeros, ones or noise."""
    begin, end = sorted(chance.randrange(len(data) + 1) for _ in range(2))
    end = min(end, begin + chance.choice((4, 64, 4096)))
    part = data[begin:end]
    put = (b"", part * 2, bytes(len(part)), b"\xff" * len(part), chance.randbytes(len(part)))
    return data[:begin] + chance.choice(put) + data[end:]


def foreign(data: bytes, chance: random.Random) -> bytes:
    """Return the head of this format before something else, or nothing."""
    heads = (
        b"",
        data[: chance.randrange(64)],
        b"\x17\x08\x44tracing",
        b"PERFILE2",
        b"PAR1",
    )
    rest = (b"", chance.randbytes(chance.randrange(3000)), b"\x7fELF" + bytes(500), b"{}" * 99)
    return chance.choice(heads) + chance.choice(rest)


DAMAGE = (flipped, flipped, flipped_early, cut, swapped, spliced, foreign)


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Allow this process, and those that it starts, a bounded amount of memory."""
    monkeypatch.setattr(programs, "SILENT_S", SILENT_S)
    monkeypatch.setattr(programs, "READER_BYTES", BYTES)
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def read(path: Path) -> None:
    """Read a file of any format to its end."""
    if path.name == "histogram.json":
        load(path, histogram.FORMAT)
        return
    if path.name.endswith(".txt.json"):
        path = path.with_suffix("")
    for _ in open_recording(path).batches:
        pass


def survived(name: str, times: int, folder: Path) -> tuple[int, list[str]]:
    """Read so many damaged files; return how many gave rows, and the errors of the others."""
    if (program := PROGRAMS.get(name)) and not shutil.which(program):
        pytest.skip(f"{program} is not installed")
    chance, path = random.Random(f"16 {name}"), folder / name
    whole, errors, rows = FORMATS[name](folder), list[str](), 0
    if name.endswith(".txt.json"):
        path.with_suffix("").write_bytes(text_of("pipe.txt.gz"))
    path.write_bytes(whole)
    if name != "perf.data":  # an older perf does not know it
        read(path)  # undamaged, it has rows
    for number in range(times):
        damage = DAMAGE[number % len(DAMAGE)]
        path.write_bytes(data := damage(whole, chance))
        began = time.monotonic()
        try:
            read(path)
            rows += 1
        except LightsleepError as error:
            errors.append(error.message)
        except BaseException as error:
            error.add_note(f"{damage.__name__}, file {number} of {name}")
            raise
        assert time.monotonic() - began < SECONDS, f"{damage.__name__}: {len(data)} bytes"
    return rows, errors


def check(name: str, times: int, folder: Path) -> None:
    rows, errors = survived(name, times, folder)
    assert rows + len(errors) == times
    assert len(errors) > times // 10
    assert all(name.removesuffix(".json") in error for error in errors)
    assert not [error for error in errors if "Traceback" in error]


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", FORMATS)
def test_a_damaged_file_is_an_error_or_rows(name: str, tmp_path: Path) -> None:
    check(name, FEW, tmp_path)


@pytest.mark.more
@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("name", FORMATS)
def test_ten_thousand_damaged_files(name: str, tmp_path: Path) -> None:
    check(name, -(-TIMES // len(FORMATS)), tmp_path)
