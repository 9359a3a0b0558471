# SPDX-License-Identifier: GPL-2.0-only
"""What a browser would see of a page, and whether the page needs anything but itself."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "hr", "img", "input", "link"}
LOADS = {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}


Pairs = list[tuple[str, str | None]]
Attributes = dict[str, str | None]


class Page(HTMLParser):
    """What a browser would see: text, elements, and whether every one of them is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, Attributes]] = []
        self.texts: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"
        self.text = " ".join(" ".join(self.texts).split())

    def handle_starttag(self, tag: str, attrs: Pairs) -> None:
        self.elements.append((tag, dict(attrs)))
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.loads += [value or "" for name, value in attrs if name in LOADS]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Pairs) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def assert_self_contained(html: str) -> Page:
    page = Page(html)
    assert all(load.startswith("#") for load in page.loads)
    assert not {"script", "link", "iframe", "object", "embed", "base", "img"} & {
        tag for tag, _ in page.elements
    }
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    for styled in re.findall(r"url\(([^)]*)\)|@import", html):
        assert styled.startswith("#")
    assert "http:" not in html.replace('xmlns="http:', "")
    assert "https:" not in html
    assert len(page.ids) == len(set(page.ids))
    return page
