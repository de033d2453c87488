"""The tables in a paste of `nvidia-smi topo`: header, rows and cells, with every repair on record.

A cell is a distance word (X, PIX, PXB, PHB, NODE, SYS; older drivers write SOC for SYS; NV# counts NVLinks), as the
legend that nvidia-smi prints defines them. Tables come with tabs, or with runs of spaces where a page or terminal has
replaced the tabs, or with a tab lost between two cells.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from railwright.node.model import InputError, format_cpulist
from railwright.node.model.soundness import P2P_STATES

from .source import Source
from .terminal import Line, plain_lines

# nvidia-smi prints one line a device; a log of a hundred thousand lines is no paste of one.
MAX_LINES = 100_000
# 32 GPUs and 64 NICs are more than any node holds; it bounds the work on a hostile paste.
MAX_COLUMNS = 256

_WORDS = {"X": "X", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "NODE", "SYS": "SYS", "SOC": "SYS"}
_NVLINK = re.compile(r"NV[1-9]\d{0,2}", re.ASCII)
_GLUED = re.compile(r"(?:X|PIX|PXB|PHB|NODE|SYS|SOC|NV[1-9]\d{0,2}){2,}", re.ASCII)
_ANY_WORD = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|SOC|NV[1-9]\d{0,2}", re.ASCII)
_WORD_AND_TAIL = re.compile(r"(?P<word>[A-Z]{1,4})(?P<tail>\d[\d,-]*|N/A)", re.ASCII)
_TAIL = re.compile(r"\d[\d,-]*|N/A", re.ASCII)
_UNKNOWN = ("", "N/A", "-1")
# `topo -p2p` has the same shape; its words are states, not distances.
_P2P = frozenset(P2P_STATES)
_ASKED = re.compile(r"\s-p2p[ =]?([rwnap])\b", re.ASCII)

_LABELS = re.compile(r"CPU[ ]+Affinity|NUMA[ ]+Affinity|GPU[ ]+NUMA[ ]+ID")
_GPU = re.compile(r"GPU(?:0|[1-9]\d{0,3})", re.ASCII)
_NIC = re.compile(r"NIC\d{1,4}|(?:mlx[45]_|roce|ib[ps]|hfi1_|bnxt_re|rdmap|cxi)\w+", re.ASCII)
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*", re.ASCII)
_NAME_IN_LINE = re.compile(r"(?<![A-Za-z0-9_.])[A-Za-z][A-Za-z0-9_.+-]*(?![A-Za-z0-9_.])", re.ASCII)
_LEGEND = re.compile(r"(?P<name>NIC\d{1,4}) ?[:=] ?(?P<device>\S+)", re.ASCII)
# An excerpt's way to write many columns in one ("mlx5_0-9").
_RANGE = re.compile(r"(?P<stem>[a-z][a-z0-9_]*_)(?P<first>\d{1,3})-(?P<last>\d{1,3})", re.ASCII)
_STRAY = re.compile(r"(?:GPU|NIC)\d+\s+(?:X|PIX|PXB|PHB|NODE|SYS|NV\d+)\s", re.ASCII)
_GLUED_NAMES = re.compile(r"(?:(?:GPU|NIC)\d{1,3}){2,}", re.ASCII)


@dataclass(frozen=True)
class Row:
    """One device's row: level by column name ("PIX", "NV8"); a column that is not there is not known.

    cut: the row ends early, or a cell is lost. tail: what stands under CPU Affinity and its neighbours, by label.
    """

    name: str
    line: int
    levels: dict[str, str]
    cut: bool
    tail: dict[str, str]


@dataclass
class Table:
    """One matrix: columns in the header's order, rows by name, legend (NIC name to RDMA device), repairs by line.

    lines: the rows as they stand, before they are read. states: rows of states (`topo -p2p`) below the header, with
    their lines; asked: the letter after -p2p, where the command stands above.
    """

    line: int
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    lines: list[tuple[Line, str, list[str]]] = field(default_factory=list)
    rows: dict[str, Row] = field(default_factory=dict)
    legend: dict[str, str] = field(default_factory=dict)
    repairs: dict[str, list[int]] = field(default_factory=dict)
    states: dict[str, tuple[int, list[str]]] = field(default_factory=dict)
    asked: str | None = None

    def __post_init__(self) -> None:
        self._names = frozenset(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def repaired(self, line: int, what: str) -> None:
        """Put on record what was read otherwise than it stands."""
        self.repairs.setdefault(what, []).append(line)

    def remarks(self) -> list[str]:
        """One sentence for each kind of repair, with its lines."""
        return [
            f"line{'s' if len(lines) > 1 else ''} {format_cpulist(lines)}: {what}"
            for what, lines in self.repairs.items()
        ]


def read_tables(source: Source) -> tuple[Table | None, list[Table]]:
    """The one matrix of this paste, if any, and its tables of P2P states.

    Raises InputError with file and line when there is neither, or more than one matrix.
    """
    tables = list(_tables(source))
    matrices = [table for table in tables if table.rows]
    states = [table for table in tables if table.states]
    if not matrices and not states:
        _refuse_none(source, tables)
    if len(matrices) > 1:
        raise InputError(
            source.at(matrices[1].line),
            f"a second matrix; the first begins on line {matrices[0].line}",
            "give one machine at a time",
        )
    return matrices[0] if matrices else None, states


def _refuse_none(source: Source, tables: list[Table]) -> None:
    if tables:
        raise InputError(
            source.at(tables[0].line),
            "the header of a matrix without rows",
            "copy the whole output of `nvidia-smi topo -m`",
        )
    raise InputError(
        source.name,
        "holds no matrix of nvidia-smi",
        "expected a line with GPU0 GPU1 ... above rows, as `nvidia-smi topo -m` prints it",
    )


def _tables(source: Source) -> Iterator[Table]:
    source.refuse_bulk()
    if source.text.count("\n") >= MAX_LINES:
        raise InputError(source.name, f"holds more than {MAX_LINES} lines", "keep the matrix and its legend")
    table: Table | None = None
    stray: Line | None = None
    asked: str | None = None
    for line in plain_lines(source.text):
        header = _header(source, line)
        if header is not None:
            if table is not None:
                yield _closed(source, table)
            header.asked = asked
            table = header
            asked = None
        elif command := _ASKED.search(line.text):
            asked = command[1]
        elif table is not None:
            _add(source, table, line)
        elif stray is None and _STRAY.match(line.text):
            stray = line
    if table is not None:
        yield _closed(source, table)
    elif stray is not None:
        raise InputError(
            source.at(stray.number),
            "a row of a matrix without the header above it",
            "copy the line with GPU0 GPU1 ... too",
        )


def _closed(source: Source, table: Table) -> Table:
    """The table with its rows read, now that it is known which one is the last."""
    for line, name, cells in table.lines:
        last = line is table.lines[-1][0]
        table.rows[name] = _RowReader(source, table, line, name, cells).row(last)
    return table


# -- header --


def _header(source: Source, line: Line) -> Table | None:
    label = _LABELS.search(line.text)
    names = (line.text[: label.start()] if label else line.text).split()
    repairs: list[str] = []
    names = [part for name in names for part in _split_name(name, repairs)]
    first = next((n for n, name in enumerate(names) if _column(name)), None)
    if first is None or not any(_GPU.fullmatch(name) for name in names):
        return None
    columns = names[first:]
    if not label and len(columns) < 2:
        return None
    if not all(
        _DEVICE.fullmatch(name) and re.search(r"[0-9]", name) and not _level(name) for name in columns
    ):
        return None
    labels = tuple(" ".join(found.split()) for found in _LABELS.findall(line.text))
    if len(columns) > MAX_COLUMNS:
        raise InputError(
            source.at(line.number), f"{len(columns)} columns; more than {MAX_COLUMNS} is no machine"
        )
    for name in columns:
        if columns.count(name) > 1:
            raise InputError(
                source.at(line.number), f"two columns are named {name}", "each device has one column"
            )
    return Table(line.number, tuple(columns), labels, repairs={repair: [line.number] for repair in repairs})


def _column(name: str) -> bool:
    """Where the header begins: what stands before it is a prompt, a host name or a log's stamp."""
    return _GPU.fullmatch(name) is not None or _NIC.fullmatch(name) is not None


def _split_name(name: str, repairs: list[str]) -> list[str]:
    span = _RANGE.fullmatch(name)
    if span and 0 < int(span["last"]) - int(span["first"]) < MAX_COLUMNS:
        repairs.append(f"the header says {name}; read as one column for each")
        return [f"{span['stem']}{number}" for number in range(int(span["first"]), int(span["last"]) + 1)]
    if _GLUED_NAMES.fullmatch(name):
        parts = re.findall(r"(?:GPU|NIC)[0-9]+", name)
        repairs.append(f"{name} in the header read as {' '.join(parts)} (a tab was lost)")
        return parts
    return [name]


# -- rows --


def _add(source: Source, table: Table, line: Line) -> None:
    legend = _LEGEND.fullmatch(" ".join(line.text.split()[-2:])) or _LEGEND.fullmatch(
        line.text.rpartition(" ")[2]
    )
    if legend and _level(legend["device"]) is None:
        _add_legend(source, table, line, legend["name"], legend["device"])
        return
    start = _row_start(table, line)
    if start is None:
        _refuse_stray(source, table, line)
        return
    name, rest = start
    cells = _cells(rest)
    if _states(cells):
        if name in table.states:
            raise InputError(
                source.at(line.number),
                f"a second row {name} of P2P states; the first is on line {table.states[name][0]}",
                "give the line with GPU0 GPU1 ... above each table",
            )
        table.states[name] = line.number, [cell for cell in cells if cell]
        return
    if not _looks_like_row(cells):
        return
    first = next((other for other, known, _ in table.lines if known == name), None)
    if first is not None:
        raise InputError(
            source.at(line.number),
            f"a second row {name}; the first is on line {first.number}",
            "give one machine",
        )
    table.lines.append((line, name, cells))


def _row_start(table: Table, line: Line) -> tuple[str, str] | None:
    """The device that the line begins with, after a prompt or log prefix, and the text after its name."""
    for match in _NAME_IN_LINE.finditer(line.text):
        if match[0] in table:
            return match[0], line.text[match.end() :]
    return None


def _cells(rest: str) -> list[str]:
    """The cells after the name. Between tabs a cell may be blank; a page may have made some tabs into spaces."""
    rest = re.sub(r"(?<=[0-9]), +(?=[0-9])", ",", rest)
    before, tab, after = rest.partition("\t")
    cells = before.split()
    for cell in after.split("\t") if tab else ():
        cells.extend(cell.split() or [""])
    return cells


def _states(cells: list[str]) -> bool:
    """Whether this is a row of P2P states. One word alone may be a tool's verdict on the GPU."""
    words = [cell for cell in cells if cell]
    return (
        all(word in _P2P or word == "X" for word in words)
        and any(word in _P2P for word in words)
        and (len(words) > 1 or "X" in words)
    )


def _looks_like_row(cells: list[str]) -> bool:
    """Prose names devices too; a row is mostly distance words."""
    words = [cell for cell in cells if cell]
    known = sum(1 for cell in words if _level(cell) or _GLUED.fullmatch(cell))
    return bool(words) and (_level(words[0]) is not None or known * 2 >= len(words))


def _level(cell: str) -> str | None:
    return _WORDS.get(cell) or (cell if _NVLINK.fullmatch(cell) else None)


class _RowReader:
    """One row's cells against the header's columns."""

    def __init__(self, source: Source, table: Table, line: Line, name: str, cells: list[str]) -> None:
        self._table = table
        self._where = source.at(line.number)
        self._line = line.number
        self._name = name
        self._cells = cells
        self._levels: list[str | None] = []
        self._notes: list[str] = []

    def row(self, last: bool) -> Row:
        """The row. A paste may end inside the last one; in any other a missing cell may be anywhere."""
        tail = self._read_cells()
        columns = self._table.columns
        if len(self._levels) > len(columns):
            raise InputError(
                self._where,
                f"row {self._name} has {len(self._levels)} distances for {len(columns)} columns",
                "copy the header and the rows again",
            )
        short = len(self._levels) < len(columns)
        if short and last and tail is None:
            self._drop_half_cell()
            self._notes.append(f"row {self._name} is cut after {len(self._levels)} of {len(columns)} columns")
        elif short:
            self._keep_up_to_self()
        for note in self._notes:
            self._table.repaired(self._line, note)
        levels = {column: level for column, level in zip(columns, self._levels, strict=False) if level}
        self._check(levels)
        return Row(self._name, self._line, levels, short, self._tail(tail or []))

    def _keep_up_to_self(self) -> None:
        """A distance is lost. Its X in the right column shows that it was not lost to the left of that."""
        own = self._levels.index("X") + 1 if "X" in self._levels else 0
        if own < len(self._levels):
            self._notes.append(
                f"a distance is lost in row {self._name}; what stands right of its X is left out"
            )
        else:
            self._notes.append(f"row {self._name} ends after {own} of {len(self._table.columns)} columns")
        self._levels = self._levels[:own]

    def _drop_half_cell(self) -> None:
        """Where a row ends early, its last cell may be cut too: NV1 of NV18 cannot be told from NV1."""
        if self._levels and (self._levels[-1] or "").startswith("NV"):
            self._levels.pop()

    def _read_cells(self) -> list[str] | None:
        """Fill the levels; the cells after them, or None when the row ends there."""
        wanted = len(self._table.columns)
        queue = deque(self._cells)
        while queue:
            cell = queue[0]
            level = _level(cell)
            if level is None and len(self._levels) >= wanted:
                return list(queue)
            queue.popleft()
            if level is not None:
                self._levels.append(level)
            elif not cell and any(_level(after) for after in queue):
                self._levels.append(None)
                self._notes.append(f"the cell under {self._under()} is blank")
            elif not cell or _TAIL.fullmatch(cell):
                return [cell, *queue] if cell or any(queue) else None
            elif _GLUED.fullmatch(cell):
                self._split_glued(cell)
            elif not any(queue) and any(word.startswith(cell) for word in (*_WORDS, "NV")):
                # Half a word at the very end: the row is cut there.
                return None
            elif not self._split_tail(cell, queue):
                raise InputError(
                    f"{self._where}: row {self._name}",
                    f"{cell[:40]!r} is no distance",
                    "expected X, PIX, PXB, PHB, NODE, SYS or NV#",
                )
        return None

    def _under(self) -> str:
        """The column of the cell that was read last."""
        return self._table.columns[len(self._levels) - 1]

    def _split_glued(self, cell: str) -> None:
        words = _ANY_WORD.findall(cell)
        # "NV1NV18" reads one way only: each word begins with a letter and only NV# ends in digits.
        self._levels.extend(_level(word) for word in words)
        self._notes.append(f"{cell} read as {' '.join(words)} (a tab was lost)")

    def _split_tail(self, cell: str, queue: deque[str]) -> bool:
        """A last distance that has grown together with the CPU list ("PHB0-115"), whole or damaged ("PH0-115").

        Only under the last column, since only there the count of columns shows that nothing else is lost.
        """
        match = _WORD_AND_TAIL.fullmatch(cell)
        last = len(self._levels) == len(self._table.columns) - 1
        if not last or match is None:
            return False
        # "NV180-115" may be NV1 or NV18: neither is taken.
        word = match["word"] if match["word"] != "NV" else ""
        level = _level(word)
        if level is None and not any(known.startswith(word) for known in _WORDS):
            return False
        self._levels.append(level)
        queue.appendleft(match["tail"] if word else "N/A")
        if level is not None:
            read = f"{level} and CPUs {match['tail']} (a tab was lost)"
        else:
            read = f"a damaged cell; the distance is that of row {self._under()}, or not known"
        self._notes.append(f"{cell} under {self._under()} read as {read}")
        return True

    def _check(self, levels: dict[str, str]) -> None:
        for column, level in levels.items():
            if level.startswith("NV") and not (_GPU.fullmatch(column) and _GPU.fullmatch(self._name)):
                raise InputError(
                    f"{self._where}: row {self._name}",
                    f"{level} stands under {column}",
                    "NVLinks join GPUs only",
                )
            if (level == "X") != (column == self._name):
                raise InputError(
                    f"{self._where}: row {self._name}",
                    f"{level} stands under {column}",
                    "X belongs under the row's own name: columns and cells do not line up, copy the matrix again",
                )

    def _tail(self, cells: list[str]) -> dict[str, str]:
        """Cells by label. nvidia-smi pads the last label with one more tab, so blank cells may be one too many."""
        labels = self._table.labels
        if any(_level(cell) for cell in cells):
            raise InputError(
                f"{self._where}: row {self._name}",
                "a distance stands after the columns of the header",
                "copy the header and the rows again",
            )
        if not cells or (len(cells) < len(labels) and re.fullmatch(r"[0-9]+", cells[0])):
            # "0" alone may be the CPU list or the NUMA node.
            return {}
        if "" in cells:
            named = dict(zip(labels, cells, strict=False))
            return {label: cell for label, cell in named.items() if cell not in _UNKNOWN}
        if len(cells) > len(labels):
            raise InputError(
                f"{self._where}: row {self._name}",
                f"{len(cells)} cells after the distances, under {len(labels)} labels",
                "expected CPU Affinity, NUMA Affinity and GPU NUMA ID at most",
            )
        return {label: cell for label, cell in zip(labels, cells, strict=False) if cell not in _UNKNOWN}


def _refuse_stray(source: Source, table: Table, line: Line) -> None:
    """A row without its column or without its name is a damaged paste; anything else is prose."""
    words = line.text.split()
    if (
        len(words) > 2
        and re.fullmatch(r"(?:GPU|NIC)[0-9]+", words[0])
        and all(_level(word) for word in words[1:3])
    ):
        raise InputError(
            source.at(line.number),
            f"row {words[0]} has no column in the header",
            "copy the header and the rows again",
        )
    if table.lines and len(words) > 1 and all(_level(word) for word in words):
        raise InputError(
            source.at(line.number),
            "distances without a device's name",
            "a row has been wrapped: copy without wrapping",
        )


def _add_legend(source: Source, table: Table, line: Line, name: str, device: str) -> None:
    if not _DEVICE.fullmatch(device):
        raise InputError(
            source.at(line.number),
            f"{device[:40]!r} is no device's name",
            "expected a form like NIC0: mlx5_0",
        )
    if name not in table:
        table.repaired(line.number, f"the legend names {name}, which has no column")
        return
    if table.legend.setdefault(name, device) != device:
        raise InputError(
            source.at(line.number),
            f"{name} is {device} here and {table.legend[name]} above",
            "give one machine at a time",
        )
