"""XML from strangers into a plain tree with line numbers: no DTD, no entities, bounded depth and size."""

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
_LAST_TAG = "</system>"


@dataclass
class Element:
    """One element: its line in the file, attributes as written, children in order."""

    tag: str
    line: int
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)


def parse(source: Source) -> Element:
    """The root element. Lines before the first one that begins with < are left out, and text after </system>.

    Raises InputError at the line for anything that is no plain, small XML.
    """
    source.refuse_bulk()
    text, skipped = _cut_out(source.text)
    builder = _Builder(source, skipped)
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


def _cut_out(text: str) -> tuple[str, int]:
    """The XML of a paste with a prompt or a fence around it, and how many lines stand before it."""
    begin = re.search(r"^[ \t]*(?=<)", text, re.MULTILINE)
    start = begin.end() if begin else 0
    end = text.rfind(_LAST_TAG)
    return text[start : end + len(_LAST_TAG) if end > start else None], text.count("\n", 0, start)


class _Builder(ContentHandler):
    def __init__(self, source: Source, skipped: int) -> None:
        super().__init__()
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
        if self._count > MAX_ELEMENTS:
            raise InputError(self._source.at(element.line), f"holds more than {MAX_ELEMENTS} elements")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def endElement(self, name: str) -> None:
        self._open.pop()

    def characters(self, content: str) -> None:
        if content.strip():
            raise InputError(
                self._source.at(self.line()),
                f"text {content.strip()[:40]!r} between elements",
                "a topology file holds elements and comments only",
            )
