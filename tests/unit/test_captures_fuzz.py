"""Accidents to every kind of capture: no traceback, no hang, and no fact that changes where nothing was touched.

An accident changes lines. A fact may change where it belongs to what those lines are about: the devices named in them,
in the lines that they stand under (less indented, above), or below such a device in the tree; or where the reader says
something (a note, a conflict, "incomplete"). RAILWRIGHT_FUZZ sets how many accidents there are; `make fuzz` has 20,000.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from railwright.captures.detect import detect
from railwright.captures.reading import _READERS
from railwright.captures.source import decode
from railwright.captures.sysfs_archive import _Archived, _Kept
from railwright.node.discover import discover
from railwright.node.model import Facts, Gpu, InputError, Nic, to_json
from tests.unit import witness_samples as samples
from tests.unit.small_machine import gpu_node

COUNT = int(os.environ.get("RAILWRIGHT_FUZZ", "2000"))
TOKENS = (
    "\t", " ", "0", "-1", "9999", "0x",
    "0000:18:00.0", "19:00.0", "ff", "]", "[", '"', "<", "/>", "N/A", "PIX", "SYS", "NV8",
    "GPU0", "mlx5_0", "port 1", "Up", "Down", "\x00", "\xff", "unknown", "x16", "32GT/s", ",", "-", "0-3", "ACTIVE", "",
)  # fmt: skip
_NAMES = re.compile(
    r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|mlx5_\d+|en[a-z0-9]+|GPU ?\d+|NIC\d+|GPU-[0-9a-f-]{36}",
    re.IGNORECASE,
)


def read_text(text: str) -> Facts:
    source = decode("capture", text.encode("utf-8", "surrogateescape"))
    return _READERS[detect(source)](source)


def accident(lines: list[str], chance: random.Random) -> tuple[list[str], set[int], list[str]]:
    """The lines afterwards, which of the old lines were touched, and what stands there now."""
    n = chance.randrange(len(lines))
    line = lines[n]
    kind = chance.randrange(8)
    if kind == 0:
        return [*lines[:n], *lines[n + 1 :]], {n}, []
    if kind == 1:
        return [*lines[: n + 1], *lines[n:]], {n}, [line]
    if kind == 2:
        other = chance.randrange(len(lines))
        changed = list(lines)
        changed[n], changed[other] = changed[other], changed[n]
        return changed, set(range(min(n, other), max(n, other) + 1)), [line, lines[other]]
    if kind == 3:
        return lines[:n], set(range(n, len(lines))), []
    start = chance.randrange(len(line) + 1)
    end = min(len(line), start + chance.choice((1, 1, 2, 5, 20)))
    if kind == 4:
        new = line[:start] + line[end:]
    elif kind == 5:
        new = line[:start] + chance.choice(TOKENS) + line[end:]
    elif kind == 6:
        new = line[:start] + chance.choice(TOKENS) + line[start:]
    elif start < len(line):
        new = line[:start] + chr(ord(line[start]) ^ (1 << chance.randrange(7))) + line[start + 1 :]
    else:
        new = line
    return [*lines[:n], new, *lines[n + 1 :]], {n}, [new]


def flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for n, item in enumerate(value):
            key = item.get("address") or item.get("name") or item.get("id") if isinstance(item, dict) else n
            yield from flat(item, f"{place}[{n if key is None else key}]")
    else:
        yield place, value


def about(lines: list[str], touched: set[int], new: list[str]) -> str:
    """The touched lines, what stands there now, and the less indented lines that each stands under."""
    told = list(new)
    for n in touched:
        told.append(lines[n])
        depth = len(lines[n]) - len(lines[n].lstrip())
        for above in range(n - 1, -1, -1):
            indent = len(lines[above]) - len(lines[above].lstrip())
            if lines[above].strip() and (
                indent < depth or (indent == depth == 0 and _NAMES.search(lines[above]))
            ):
                told.append(lines[above])
                depth = indent
            if depth == 0 and told[-1] == lines[above]:
                break
        own = len(lines[n]) - len(lines[n].lstrip())
        for under in range(n + 1, len(lines)):
            if lines[under].strip() and len(lines[under]) - len(lines[under].lstrip()) <= own:
                break
            told.append(lines[under])
        if lines[0].startswith("# dmidecode"):
            # A structure of firmware is one thing: which slot it is stands beside its name.
            first = next((above for above in range(n, -1, -1) if not lines[above].strip()), 0)
            last = next((under for under in range(n + 1, len(lines)) if not lines[under].strip()), len(lines))
            told += lines[first:last]
    # A reader takes terminals' control characters away.
    return "\n".join(told + [re.sub(r"[\x00-\x1f\x7f]", "", line) for line in told])


def below(facts: Facts, names: set[str]) -> set[str]:
    parents = {device.address: device.parent for device in facts.pci}
    found = set(names)
    for _ in range(8):
        found |= {address for address, parent in parents.items() if parent in found}
    return found


def unexplained(before: Facts, after: Facts, context: str) -> list[str]:
    """Facts that differ and that nothing accounts for."""
    if (after.notes, after.conflicts, after.complete) != (before.notes, before.conflicts, before.complete):
        return []
    old, new = dict(flat(to_json(before))), dict(flat(to_json(after)))
    changed = [place for place in old.keys() | new.keys() if old.get(place) != new.get(place)]
    names = {name.lower().replace("gpu ", "gpu") for name in _NAMES.findall(context)}
    names |= {f"0000:{name}" for name in names if re.fullmatch(r"[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", name)}
    names |= {name.replace("00000000:", "0000:") for name in names}
    # A drawing writes the bus apart from the function.
    drawn = set(re.findall(r"\[([0-9a-f]{2})(?:-[0-9a-f]{2})?\]", context)) | set(
        re.findall(r"-\[[0-9a-f]{4}:([0-9a-f]{2})", context)
    )
    names |= {
        device.address for facts in (before, after) for device in facts.pci if device.address[-7:-5] in drawn
    }
    names = below(before, names) | below(after, names)
    # A bridge is kept for what hangs below it.
    for facts in (before, after):
        parents = {device.address: device.parent for device in facts.pci}
        for _ in range(8):
            names |= {parent for address, parent in parents.items() if address in names and parent}
    # A device has several names: address, RDMA device, interface, matrix header.
    for facts in (before, after):
        devices: tuple[Gpu | Nic, ...] = (*facts.gpus, *facts.nics)
        for device in devices:
            own = {
                device.name.lower(),
                device.address,
                getattr(device, "rdma", None),
                getattr(device, "netdev", None),
            }
            if own & names:
                names |= {str(name).lower() for name in own if name}
    counted = (len(before.gpus), len(before.nics), len(before.pci)) != (
        len(after.gpus),
        len(after.nics),
        len(after.pci),
    )
    bad = []
    for place in changed:
        keys = {key.lower() for key in re.findall(r"\[([^\]]*)\]", place)}
        whole = place.startswith(
            ("cpus", "numa", "host", "schema", "witnesses", "roots", "irqs", "paths", "p2p")
        )
        # A device that comes or goes moves the numbers of those after it.
        moved = counted and place.startswith(("gpus", "nics"))
        # The name itself may be what was touched; and a matrix's NIC has its node from the GPUs' rows.
        named = any(key in context.lower() for key in keys)
        derived = bool(before.paths) and place.startswith("nics") and new.get(place) is None
        if not (keys & names or whole or moved or named or derived):
            bad.append(f"{place}: {old.get(place)!r} -> {new.get(place)!r}")
    return bad


def texts() -> dict[str, str]:
    """Our samples, and the smaller public captures where they are at hand."""
    found = dict(samples.ALL)
    folder = os.environ.get("RAILWRIGHT_CAPTURES")
    for path in sorted(Path(folder).glob("*/*")) if folder else ():
        if path.suffix in {".txt", ".xml"} and path.stat().st_size < 60_000:
            found[f"{path.parent.name}/{path.name}"] = path.read_text()
    return found


def test_accidents_to_every_kind_are_read_refused_or_explained() -> None:
    chance = random.Random(20260107)  # noqa: S311 (the same accidents on every run)
    originals: dict[str, tuple[str, Facts]] = {}
    for name, text in texts().items():
        try:
            originals[name] = text, read_text(text)
        except InputError:
            continue
    ours = [name for name in originals if name in samples.ALL]
    public = [name for name in originals if name not in samples.ALL]
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for number in range(COUNT):
        # Each of our kinds in turn, and a public capture every third time.
        name = chance.choice(public) if public and number % 3 == 2 else ours[number % len(ours)]
        text, before = originals[name]
        lines = text.split("\n")
        mutant, touched, new = accident(lines, chance)
        try:
            after = read_text("\n".join(mutant))
        except InputError as error:
            counts["refused" if error.where and error.why else "unsaid"] += 1
            continue
        if after == before:
            counts["the same facts"] += 1
            continue
        found = unexplained(before, after, about(lines, touched, new))
        counts["unexplained" if found else "changed where it was touched, or said"] += 1
        bad += [
            f"{name}: {new!r} for {[lines[n] for n in sorted(touched)][:2]}: {entry}" for entry in found[:2]
        ]
    print(f"{COUNT} accidents to {len(originals)} captures: {dict(counts)}")
    assert not bad, "\n".join(bad[:20])
    assert counts["refused"]
    assert not counts["unsaid"]
    assert counts.total() == COUNT


def members(root: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Files and links of a tree by path."""
    files, links = {}, {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if path.is_symlink():
            links[name] = os.readlink(path)
        elif path.is_file():
            files[name] = path.read_text()
    return files, links


def read_members(files: dict[str, str], links: dict[str, str]) -> Facts:
    """What the reader of archives makes of these members, without packing them."""
    kept = _Kept(prefix="")
    kept.files = {name: (text.encode("utf-8", "surrogateescape"), 0o644) for name, text in files.items()}
    kept.links = links
    return discover(_Archived(Path("capture"), kept))


def test_accidents_to_a_tree_of_sys_and_proc_are_read_refused_or_explained(tmp_path: Path) -> None:
    """One file is damaged or lost, or one link; facts may change that belong to the devices in its path and text."""
    chance = random.Random(20260108)  # noqa: S311 (the same accidents on every run)
    files, links = members(gpu_node(tmp_path))
    before = read_members(files, links)
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for _ in range(COUNT // 10):
        path = chance.choice([*files, *links])
        changed, kept = dict(files), dict(links)
        if path in links:
            kept[path] = chance.choice(("", "..", "../../..", *links.values()))
            context = f"{path} {links[path]} {kept[path]}"
        else:
            lines = files[path].split("\n")
            mutant, touched, new = accident(lines, chance)
            changed[path] = "\n".join(mutant)
            context = "\n".join([path, *new, *(lines[n] for n in touched)])
            if chance.randrange(8) == 0:
                del changed[path]
        try:
            after = read_members(changed, kept)
        except InputError as error:
            counts["refused" if error.where and error.why else "unsaid"] += 1
            continue
        if after == before:
            counts["the same facts"] += 1
            continue
        found = unexplained(before, after, context)
        counts["unexplained" if found else "changed where it was touched, or said"] += 1
        bad += [f"{path}: {changed.get(path, kept.get(path))!r}: {entry}" for entry in found[:2]]
    print(f"{COUNT // 10} accidents to {len(files)} files and {len(links)} links: {dict(counts)}")
    assert not bad, "\n".join(bad[:20])
    assert counts["refused"]
    assert not counts["unsaid"]


def test_accidents_to_facts_as_json_change_no_more_than_they_touch() -> None:
    """A line of this JSON is one value, or begins or ends one thing, so no accident changes more values than lines.

    A line with a bracket carries what lies in it: losing one makes the text no JSON.
    """
    chance = random.Random(20260109)  # noqa: S311 (the same accidents on every run)
    before = read_text(samples.LSPCI)
    lines = json.dumps(to_json(before), indent=1).split("\n")
    counts: Counter[str] = Counter()
    bad: list[str] = []
    for _ in range(COUNT // 10):
        mutant, touched, new = accident(lines, chance)
        try:
            after = read_text("\n".join(mutant))
        except InputError as error:
            counts["refused" if error.where and error.why else "unsaid"] += 1
            continue
        old, now = dict(flat(to_json(before))), dict(flat(to_json(after)))
        places = [place for place in old.keys() | now.keys() if old.get(place) != now.get(place)]
        # A list of words is one place: a lost word moves those after it.
        changed = sorted({re.sub(r"\[\d+\]$", "", place) for place in places})
        # A renamed device takes its values along under its new name.
        renamed = any('"address"' in lines[n] or '"name"' in lines[n] for n in touched)
        more = 0 if renamed else len(changed) - 2 * max(1, len(touched))
        counts["the same facts" if not changed else "more than was touched" if more > 0 else "changed"] += 1
        bad += [f"{new!r}: {changed[:5]}"] if more > 0 else []
    print(f"{COUNT // 10} accidents to {len(lines)} lines of facts: {dict(counts)}")
    assert not bad, "\n".join(bad[:20])
    assert counts["refused"]
    assert not counts["unsaid"]


@pytest.mark.parametrize(
    "text",
    [
        "18:00.0 3D controller: NVIDIA\n" + "\tBus: primary=\n" * 10,
        "".join(f"{n >> 8:02x}:{n >> 3 & 31:02x}.{n & 7} PCI bridge: x\n" for n in range(65536)),
        "-[0000:00]-" + "+-00.0-[01]-" * 50_000,
        "-[0000:00]-+-00.0\n" + " |" * 1_000_000,
        "<topology version='2.0'><object type='Machine'>" + "<object type='PU' os_index='1'/>" * 100_000,
        "<topology>" + "<object>" * 5_000,
        "<topology version='2.0'><object type='Machine' cpuset='" + "0xffffffff," * 300_000 + "'/></topology>",
        "GPU 0: A (UUID: GPU-0)\n" + "Link 0: 25 GB/s\n" * 100_000,
        "# CPU,Core,Socket,Node\n" + "1,1,1,1\n" * 150_000,
        "Architecture: x86_64\nOn-line CPU(s) list: " + "0-8191," * 400_000,
        "Handle 0x0001, DMI type 9, 1 bytes\n" * 150_000,
        "CPU0\n" + "1: 1 a@pci:0000:01:00.0\n" * 150_000,
        "==============NVSMI LOG==============\n" + "    a : b\n" * 190_000,
        "<nvidia_smi_log>" + "<gpu id='00000000:01:00.0'>" * 60,
        "mlx5_0 port 1 ==> a (Up)\n" * 150_000,
        "mlx5_0 port 1 " + "=" * 3_000_000 + "==> a",
    ],
    ids=range(16),
)  # fmt: skip
def test_what_is_made_to_tire_the_new_readers_out_is_bounded(text: str) -> None:
    with contextlib.suppress(InputError):
        read_text(text)
