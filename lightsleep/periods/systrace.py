# SPDX-License-Identifier: GPL-2.0-only
"""Finding the kernel's trace inside a page that systrace or atrace has made.

Such a page holds a viewer, in long lines of script, and the text of each trace in a script element
of class ``trace-data``. One of those is the kernel's: its header says ``# tracer:``. Only that text
passes, in constant memory. The tag that ends the element is indented, which is no line of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

BEGIN = b'class="trace-data"'
END = b"</script>"
BLANKS = b" \t"
HEADER = b"# tracer:"
HEADS = (b"<!doctype html", b"<html")

INDENT = 64
"""Blanks before the tag at the end of an element, at most."""


def is_page(head: bytes) -> bool:
    """Whether a file that begins so is a page."""
    return head[:256].lstrip().lower().startswith(HEADS)


def traces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Pass on the kernel's traces of a page, in chunks. Nothing is a page without a trace."""
    source, buffer = iter(chunks), b""
    while (found := _after(BEGIN, buffer, source)) is not None:
        inside = _Element(found, source)
        buffer = b""
        skipped = _after(HEADER, b"", inside)
        if skipped is not None:
            yield HEADER + skipped
            yield from inside
        for _ in inside:  # an element of something else
            pass
        buffer = inside.rest


def _after(mark: bytes, buffer: bytes, source: Iterator[bytes]) -> bytes | None:
    """Return what is known behind the next ``mark``; None where there is none."""
    while mark not in buffer:
        chunk = next(source, None)
        if chunk is None:
            return None
        buffer = buffer[-len(mark) :] + chunk
    return buffer.partition(mark)[2]


class _Element:
    """The chunks up to the end of an element; ``rest`` is what follows, once they have ended."""

    def __init__(self, begin: bytes, source: Iterator[bytes]) -> None:
        self._buffer, self._source, self._ended = begin, source, False
        self.rest = b""

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        while END not in self._buffer:
            chunk = next(self._source, None)
            if chunk is None:
                self._ended = True
                if not self._buffer:
                    raise StopIteration
                return self._buffer
            safe = max(0, len(self._buffer) - len(END))
            blanks = safe - len(self._buffer[:safe].rstrip(BLANKS))
            safe -= blanks if blanks <= INDENT else 0  # they may be the indent of the end
            known, self._buffer = self._buffer[:safe], self._buffer[safe:] + chunk
            if known:
                return known
        self._ended = True
        last, _, self.rest = self._buffer.partition(END)
        return last.rstrip(BLANKS)
