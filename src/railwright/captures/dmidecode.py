"""`dmidecode`: product, processors' names and the chassis's names of slots. Serials and UUIDs are not taken."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from railwright.node.model import Cpus, Facts, Host, InputError, PciDevice, normalise_address, sort_key

from .fields import facts_of, lines_of, refuse_crowd
from .source import Source

_HANDLE = re.compile(r"^Handle 0x[0-9A-Fa-f]{4}, DMI type (\d{1,3}), \d{1,4} bytes$", re.ASCII)
_FIELD = re.compile(r"^\t([A-Za-z][A-Za-z0-9 /-]{0,40}): ?(.*)$", re.ASCII)
_SYSTEM, _PROCESSOR, _SLOT = "1", "4", "9"
# What firmware writes where nobody filled the field in.
_BLANK = ("", "Not Specified", "To Be Filled By O.E.M.", "Default string", "Unknown", "None", "N/A")
_VENDORS = {"Intel": "GenuineIntel", "AMD": "AuthenticAMD", "Advanced Micro Devices": "AuthenticAMD"}


@dataclass
class _Structure:
    kind: str
    line: int
    fields: dict[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        value = self.fields.get(name, "").strip()
        return None if value in _BLANK else value


def read_dmidecode(source: Source) -> Facts:
    """Product, processor and slots. Raises InputError with file and line."""
    structures = _structures(source)
    system = [entry for entry in structures if entry.kind == _SYSTEM]
    if len(system) > 1:
        raise InputError(
            source.at(system[1].line), "a second System Information", "give one machine at a time"
        )
    slots = _slots(source, structures)
    product = None
    if system:
        words = (system[0].text("Manufacturer"), system[0].text("Product Name"))
        product = " ".join(word for word in words if word) or None
    cpus = _processor(structures)
    if product is None and not slots and cpus == Cpus():
        raise InputError(
            source.name, "shows no product, processor or slot", "run dmidecode as root and give all of it"
        )
    return facts_of("dmidecode", source, host=Host(product=product), cpus=cpus, pci=slots)


def _structures(source: Source) -> list[_Structure]:
    found: list[_Structure] = []
    for line in lines_of(source):
        if begin := _HANDLE.match(line.text):
            found.append(_Structure(begin[1], line.number))
            refuse_crowd(len(found), "structures", source.at(line.number))
        elif line.text.startswith("Handle "):
            raise InputError(
                source.at(line.number),
                f"found {line.text[:60]!r}",
                "expected Handle 0x0001, DMI type 1, 27 bytes",
            )
        elif found and (match := _FIELD.match(line.text)):
            found[-1].fields.setdefault(match[1], match[2])
    return found


def _processor(structures: list[_Structure]) -> Cpus:
    fitted = [
        entry
        for entry in structures
        if entry.kind == _PROCESSOR and "Unpopulated" not in entry.fields.get("Status", "")
    ]
    names = {name for entry in fitted if (name := entry.text("Version")) is not None}
    makers = {_maker(entry.text("Manufacturer") or "") for entry in fitted}
    return Cpus(
        vendor=makers.pop() if len(makers) == 1 else None, model_name=names.pop() if len(names) == 1 else None
    )


def _maker(text: str) -> str | None:
    return next((vendor for word, vendor in _VENDORS.items() if text.startswith(word)), None)


def _slots(source: Source, structures: list[_Structure]) -> tuple[PciDevice, ...]:
    """Functions in slots that firmware calls used. An address of all ones is firmware's word for none."""
    found: dict[str, PciDevice] = {}
    for entry in structures:
        address, label = entry.text("Bus Address"), entry.text("Designation")
        if entry.kind != _SLOT or address is None or label is None or address.lower().startswith("ffff:"):
            continue
        if entry.text("Current Usage") not in {"In Use", None}:
            continue
        device = normalise_address(address, source.at(entry.line))
        found.setdefault(device, PciDevice(device, None, slot=label[:64]))
    return tuple(found[address] for address in sorted(found, key=sort_key))
