# SPDX-License-Identifier: GPL-2.0-only
"""The formats of recordings: for each, by what it is recognised, and how it is read.

To read one more format, add a row to FORMATS, and a function that lends its lines as one of the
kernel's trace, which lines.py reads. All are read in constant memory.

A trace.dat is read by trace-cmd's library (trace_dat.py) or, without a compiler, by trace-cmd
report, a perf.data by perf script, and a folder in the Common Trace Format by babeltrace2, which
know every version of their format. What they print is text, and so is the kernel's own trace file,
also inside a page of systrace. A trace of Perfetto becomes such lines, too (perfetto.py). A Parquet
file holds rows already (table.py).
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from lightsleep.errors import LightsleepError
from lightsleep.periods import architecture, ctf, expected, perf_data, perfetto, systrace
from lightsleep.periods.lines import CHUNK, LINE, split
from lightsleep.periods.model import Metadata
from lightsleep.periods.programs import printed_by

if TYPE_CHECKING:
    import pyarrow as pa

NOTHING = (
    "no recording, or a damaged one: none of the events that lightsleep record records can be "
    "read from it"
)

Lent = AbstractContextManager[Iterable[str]]


def _none(*_asked: object) -> None:
    """Answer for a format that cannot tell."""


@dataclass(frozen=True)
class Format:
    """A format of recordings.

    ``begins`` is the mark at the begin of a file, or several of which it has one, or tells by its
    first CHUNK bytes whether it has this format. ``lines`` lends the lines of a file; a table has
    none. ``rows`` returns its rows where a program reads them at once. ``architecture`` returns the
    one that a file names, and ``expected_ns`` about how long the recording is. These three return
    None where nothing tells.
    """

    begins: bytes | tuple[bytes, ...] | Callable[[bytes], bool]
    lines: Callable[[Path, Metadata], Lent] | None
    rows: Callable[[Path, Metadata], Iterator[pa.RecordBatch] | None] = _none
    architecture: Callable[[Path], str | None] = _none
    expected_ns: Callable[[Path], int | None] = _none

    def fits(self, head: bytes) -> bool:
        """Whether a file that begins with ``head`` has this format."""
        if isinstance(self.begins, (bytes, tuple)):
            return head.startswith(self.begins)
        return self.begins(head)


def _rows_of_trace_dat(path: Path, metadata: Metadata) -> Iterator[pa.RecordBatch] | None:
    # Not above: it needs pyarrow, and whoever asks for the format of a file may not have it.
    from lightsleep.periods import trace_dat

    return trace_dat.rows(path, metadata)


def _lines_of_trace_dat(path: Path, metadata: Metadata) -> Lent:
    from lightsleep.periods import trace_dat

    return trace_dat.lines(path, metadata)


@contextlib.contextmanager
def _ctf(path: Path, metadata: Metadata) -> Iterator[Iterable[str]]:
    command = [*ctf.COMMAND, str(ctf.folder_of(path))]
    losses = ctf.Losses()
    with printed_by(command, path, metadata, losses.hear) as lines:
        yield ctf.lines(lines, losses)


def _is_perfetto(head: bytes) -> bool:
    return perfetto.is_trace(head) and not _has_events(head)  # text may begin with an empty line


@contextlib.contextmanager
def _perfetto(path: Path, metadata: Metadata) -> Iterator[Iterable[str]]:
    with perfetto.opened(path) as trace:
        if not trace.has_events:
            raise LightsleepError(
                f"{path}: {NOTHING}: this trace of Perfetto holds no events of the kernel; its "
                "data source linux.ftrace records them"
            )
        metadata.expected_ns = metadata.expected_ns or trace.span_ns
        metadata.notes += trace.notes
        yield trace


def _has_events(head: bytes) -> bool:
    lines = head.decode(errors="replace").splitlines()
    return any(LINE.match(line) or line.startswith("# tracer:") for line in lines)


@contextlib.contextmanager
def _text(path: Path, _metadata: Metadata) -> Iterator[Iterable[str]]:
    with _opened(path) as file:
        yield split(_chunks(file), path)


@contextlib.contextmanager
def _page(path: Path, _metadata: Metadata) -> Iterator[Iterable[str]]:
    with _opened(path) as file:
        yield split(systrace.traces(_chunks(file)), path)


@contextlib.contextmanager
def _gzip(path: Path, _metadata: Metadata) -> Iterator[Iterable[str]]:
    with _opened(path) as file, gzip.GzipFile(fileobj=file) as unpacked:
        if of_head(unpacked.peek(CHUNK)) in BINARY:
            raise LightsleepError(
                f"{path}: only text is read compressed: unpack it first, with gunzip"
            )
        yield split(_chunks(unpacked), path)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Lend a file. Raises LightsleepError where it is damaged."""
    with path.open("rb") as file:  # it could be read a moment ago
        try:
            yield file
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise LightsleepError(f"{path}: damaged before byte {file.tell()}: {reason}") from error


def _chunks(file: BinaryIO | gzip.GzipFile) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")


TABLE = Format(b"PAR1", lines=None)
TRACE_DAT = Format(
    b"\x17\x08\x44tracing",
    _lines_of_trace_dat,
    rows=_rows_of_trace_dat,
    architecture=architecture.of_trace_dat,
)
PERF_DATA = Format(
    (b"PERFILE2", b"2ELIFREP"),  # a number, in either byte order
    perf_data.lines,
    architecture=perf_data.architecture,
    expected_ns=perf_data.expected_ns,
)
PERFETTO = Format(_is_perfetto, _perfetto)
GZIP = Format(b"\x1f\x8b", _gzip)
PAGE = Format(systrace.is_page, _page, expected_ns=expected.of_text)
TEXT = Format(_has_events, _text, expected_ns=expected.of_text)
UNKNOWN = replace(TEXT, begins=b"")
"""Something else: read as text, it is an error that says which line is no event."""

BINARY = (TABLE, TRACE_DAT, PERF_DATA, PERFETTO)
"""What is not read compressed."""

FORMATS = (*BINARY, GZIP, PAGE, TEXT, UNKNOWN)
"""Of several that fit a file, the first one is its format."""

CTF = Format(lambda _head: False, _ctf, expected_ns=expected.of_ctf)
"""Of a folder, which has no first bytes."""


def of(path: Path) -> Format:
    """Return the format of a recording. Raises LightsleepError where it cannot be read."""
    if ctf.folder_of(path):
        return CTF
    if is_folder(path) and _is_folder_of_perf(path):
        return PERF_DATA
    return of_head(head_of(path, CHUNK))


def _is_folder_of_perf(path: Path) -> bool:
    """Whether a folder is a perf.data, as of perf record --threads and --kcore."""
    data = path / "data"
    return data.is_file() and PERF_DATA.fits(head_of(data, CHUNK))


def of_head(head: bytes) -> Format:
    """Return the format of a file by its first bytes."""
    return next(each for each in FORMATS if each.fits(head))


def is_recording(path: Path) -> bool:
    """Whether a file looks like a recording, and not like a result, which is a JSON document.

    Raises LightsleepError where it cannot be read.
    """
    if is_folder(path):
        return ctf.folder_of(path) is not None or _is_folder_of_perf(path)
    return of(path) is not UNKNOWN


def is_folder(path: Path) -> bool:
    """Whether a path is a folder. Raises LightsleepError where nobody can tell."""
    try:
        return path.is_dir()
    except OSError as error:
        raise LightsleepError(f"cannot read {path}: {error.strerror}") from error


def head_of(path: Path, size: int) -> bytes:
    """Return the first ``size`` bytes of a file; raises LightsleepError where they are not read."""
    try:
        with path.open("rb") as file:
            return file.read(size)
    except OSError as error:
        raise LightsleepError(f"cannot read {path}: {error.strerror}") from error
