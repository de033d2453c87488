"""How NCCL reads a topology file, as a second opinion on what the planner writes."""

from __future__ import annotations

from collections import Counter


class NcclParser:
    """NCCL's own reading of the text, character by character, with its limits (src/graph/xml.cc:45-250, xml.h)."""

    def __init__(self, text: str) -> None:
        self._text, self._at, self.elements = text, 0, 0
        self.children: Counter[int] = Counter()
        stack: list[tuple[str, int]] = []
        while True:
            while self._text[self._at : self._at + 1] in (" ", "\n", "\r"):
                self._at += 1
            if self._at == len(self._text):
                assert not stack
                return
            assert self._next() == "<"
            name, last = self._token()
            if name.startswith("!--"):
                self._at = self._text.index("-->", self._at - 1) + 3
            elif name == "" and last == "/":
                name, last = self._token()
                assert (name, last) == (stack.pop()[0], ">")
            else:
                self.elements += 1
                if stack:
                    self.children[stack[-1][1]] += 1
                last = self._attributes(last)
                if last == "/":
                    assert self._token() == ("", ">")
                else:
                    assert last == ">"
                    stack.append((name, self.elements))

    def _attributes(self, last: str) -> str:
        count = 0
        while last == " ":
            name, last = self._token()
            count += 1
            assert "=" in name, "an attribute without a value"
        assert count <= 16
        return last

    def _next(self) -> str:
        self._at += 1
        return self._text[self._at - 1]

    def _token(self) -> tuple[str, str]:
        name = ""
        while True:
            character = self._next()
            if character == "=":
                assert self._next() == '"'
                end = self._text.index('"', self._at)
                value = self._text[self._at : end]
                assert len(value) < 254
                self._at = end + 1
                return f"{name}={value}", self._next()
            if character in " >/\n\r":
                return name, character
            name += character
            assert len(name) < 254


def must_fit_nccl(text: str) -> NcclParser:
    parsed = NcclParser(text)
    assert text.startswith('<system version="1">\n')
    assert parsed.elements <= 256
    assert max(parsed.children.values()) <= 640
    return parsed
