"""XML from strangers into a plain tree with line numbers: no DTD that says anything, no entities, bounded."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from xml.sax import SAXParseException
from xml.sax.handler import ContentHandler
from xml.sax.xmlreader import AttributesImpl, InputSource, Locator

from defusedxml import DefusedXmlException
from defusedxml.sax import make_parser

from railwright.node.model import InputError

from .source import Source

# Cascaded switches make a real tree about ten elements deep.
MAX_DEPTH = 64
# NCCL 2.30.7 holds 256 elements for one machine (src/graph/xml.h).
MAX_ELEMENTS = 20_000
# hwloc writes thirty numbers an element; nvidia-smi one word.
MAX_TEXT = 16_384
# hwloc and nvidia-smi name their DTD, and nobody needs it: such a line defines nothing.
_NAMED_DTD = re.compile(r"<!DOCTYPE\s+[\w.-]+(?:\s+SYSTEM\s+(?:\"[^\"<>]*\"|'[^'<>]*'))?\s*>")
# Where a document type may stand.
_PROLOGUE_CHARACTERS = 4096


@dataclass
class Element:
    """One element: its line in the file, attributes as written, children in order, the text in it."""

    tag: str
    line: int
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    text: str = ""


@dataclass(frozen=True)
class Form:
    """What one kind of file may hold. root: its outermost element. text: whether elements hold text."""

    root: str = "system"
    named_dtd: bool = False
    text: bool = False
    elements: int = MAX_ELEMENTS


_TOPOLOGY = Form()


def parse(source: Source, form: Form = _TOPOLOGY) -> Element:
    """The root element. Lines before the first one that begins with < are left out, and text after its end.

    Raises InputError at the line for anything that is no plain, small XML.
    """
    source.refuse_bulk()
    text, skipped = _cut_out(source.text, f"</{form.root}>")
    if form.named_dtd:
        text = (
            _NAMED_DTD.sub(lambda match: "\n" * match[0].count("\n"), text[:_PROLOGUE_CHARACTERS], 1)
            + (text[_PROLOGUE_CHARACTERS:])
        )
    builder = _Builder(source, skipped, form)
    parser = make_parser()
    # A DTD is the only way to define entities, and no topology file has one.
    parser.forbid_dtd = True
    parser.setContentHandler(builder)
    stream = InputSource(source.name)
    stream.setCharacterStream(io.StringIO(text))
    try:
        parser.parse(stream)
    except SAXParseException as error:
        line = (error.getLineNumber() or 1) + skipped
        raise InputError(
            source.at(line), f"is not XML: {error.getMessage()}", "is the file whole? copy it again"
        ) from error
    except DefusedXmlException as error:
        raise InputError(
            source.at(builder.line()),
            "holds a DTD or entities",
            "remove the <!DOCTYPE ...>: a topology file has none",
        ) from error
    if builder.root is None:
        raise InputError(source.name, "holds no element", "give the XML file of one machine")
    return builder.root


def _cut_out(text: str, last: str) -> tuple[str, int]:
    """The XML of a paste with a prompt or a fence around it, and how many lines stand before it."""
    begin = re.search(r"^[ \t]*(?=<)", text, re.MULTILINE)
    start = begin.end() if begin else 0
    end = text.rfind(last)
    return text[start : end + len(last) if end > start else None], text.count("\n", 0, start)


class _Builder(ContentHandler):
    def __init__(self, source: Source, skipped: int, form: Form) -> None:
        super().__init__()
        self._form = form
        self.root: Element | None = None
        self._source = source
        self._skipped = skipped
        self._open: list[Element] = []
        self._count = 0
        self._locator: Locator | None = None

    def line(self) -> int:
        """The line of the capture that the parser has come to."""
        return ((self._locator.getLineNumber() if self._locator else None) or 1) + self._skipped

    def setDocumentLocator(self, locator: Locator) -> None:
        self._locator = locator

    def startElement(self, name: str, attrs: AttributesImpl) -> None:
        element = Element(name, self.line(), dict(attrs.items()))
        self._count += 1
        if len(self._open) >= MAX_DEPTH:
            raise InputError(self._source.at(element.line), f"<{name}> lies deeper than {MAX_DEPTH} elements")
        if self._count > self._form.elements:
            raise InputError(self._source.at(element.line), f"holds more than {self._form.elements} elements")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def endElement(self, name: str) -> None:
        self._open.pop()

    def characters(self, content: str) -> None:
        if self._form.text and self._open:
            element = self._open[-1]
            if len(element.text) + len(content) > MAX_TEXT:
                raise InputError(
                    self._source.at(self.line()), f"<{element.tag}> holds more than {MAX_TEXT} characters"
                )
            element.text += content
        elif content.strip():
            raise InputError(
                self._source.at(self.line()),
                f"text {content.strip()[:40]!r} between elements",
                "a topology file holds elements and comments only",
            )
