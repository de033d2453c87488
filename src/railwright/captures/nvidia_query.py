"""`nvidia-smi -q`, as text or with -x: GPUs with address, model, UUID, PCI identifiers and link. It shows no NICs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from railwright.node.discover.nvidia_smi import fabric_of
from railwright.node.model import Fabric, Facts, Gpu, Host, InputError, PciDevice, normalise_address, sort_key

from .fields import GENERATIONS, WIDTHS, facts_of, lines_of, refuse_crowd, some_link, uuid, whole
from .source import Source
from .xml_tree import Element, Form, parse

_FORM = Form(root="nvidia_smi_log", named_dtd=True, text=True, elements=100_000)
_LOG = re.compile(r"^=+NVSMI LOG=+$")
_GPU_LINE = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])$", re.ASCII)
_TEXT_FIELD = re.compile(r"^( *)(\S.{0,60}?) +: ?(.*)$")
_TEXT_GROUP = re.compile(r"^( +)(\S.{0,60})$")
_UNKNOWN = (
    "",
    "N/A",
    "[N/A]",
    "Unknown Error",
    "[Unknown Error]",
    "GPU requires reset",
    "[GPU requires reset]",
)

# Architectures of which all data centre GPUs have one compute capability (CUDA C++ Programming Guide, table 27).
_ONE_CAPABILITY = {"Volta": 70, "Hopper": 90}
# What is read of a GPU: its place in the XML and in the text.
_PLACES = {
    "minor": ("minor_number", "Minor Number"),
    "architecture": ("product_architecture", "Product Architecture"),
    "bus": ("pci/pci_bus_id", "PCI/Bus Id"),
    "model": ("product_name", "Product Name"),
    "uuid": ("uuid", "GPU UUID"),
    "device": ("pci/pci_device_id", "PCI/Device Id"),
    "subsystem": ("pci/pci_sub_system_id", "PCI/Sub System Id"),
    "base": ("pci/pci_base_class", "PCI/Base Classcode"),
    "sub": ("pci/pci_sub_class", "PCI/Sub Classcode"),
    "generation": (
        "pci/pci_gpu_link_info/pcie_gen/current_link_gen",
        "PCI/GPU Link Info/PCIe Generation/Current",
    ),
    "device_max": (
        "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen",
        "PCI/GPU Link Info/PCIe Generation/Device Max",
    ),
    "max": ("pci/pci_gpu_link_info/pcie_gen/max_link_gen", "PCI/GPU Link Info/PCIe Generation/Max"),
    "width": ("pci/pci_gpu_link_info/link_widths/current_link_width", "PCI/GPU Link Info/Link Width/Current"),
    "max_width": ("pci/pci_gpu_link_info/link_widths/max_link_width", "PCI/GPU Link Info/Link Width/Max"),
    "mig": ("mig_mode/current_mig", "MIG Mode/Current"),
    "fabric": ("fabric/state", "Fabric/State"),
    "fabric_status": ("fabric/status", "Fabric/Status"),
    "clique": ("fabric/cliqueId", "Fabric/CliqueId"),
    "cluster": ("fabric/clusterUuid", "Fabric/ClusterUUID"),
    "virtual": ("gpu_virtualization_mode/virtualization_mode", "GPU Virtualization Mode/Virtualization Mode"),
}


@dataclass(frozen=True)
class _Entry:
    """One GPU: the bus id in its heading, where it begins, and a way to its values."""

    heading: str
    where: str
    value: Callable[[str], str]


def read_nvidia_query(source: Source) -> Facts:
    """Facts of the GPUs. Raises InputError with file and line."""
    if source.text.lstrip("\ufeff \t\r\n").startswith("<"):
        driver, stated, entries = _from_xml(source)
    else:
        driver, stated, entries = _from_text(source)
    if not entries:
        raise InputError(source.name, "names no GPU", "give the whole output of nvidia-smi -q")
    devices: dict[str, PciDevice] = {}
    gpus: list[Gpu] = []
    notes: list[str] = []
    for entry in entries:
        device = _device(entry)
        if device.address in devices:
            raise InputError(entry.where, f"{device.address} stands twice", "give one machine at a time")
        devices[device.address] = device
        refuse_crowd(len(devices), "GPUs", entry.where)
        gpus.append(
            Gpu(
                "",
                0,
                device.address,
                model=_known(entry.value("model")),
                uuid=uuid(entry.value("uuid")),
                sm=_ONE_CAPABILITY.get(entry.value("architecture")),
                fabric=_fabric(entry),
                minor=_minor(entry),
                mig={"Enabled": True, "Disabled": False}.get(entry.value("mig")),
            )
        )
    gpus.sort(key=lambda gpu: sort_key(gpu.address or ""))
    known = [gpu.uuid for gpu in gpus if gpu.uuid is not None]
    if len(set(known)) < len(known):
        raise InputError(source.name, "two GPUs have one UUID", "give the output as nvidia-smi printed it")
    gpus = [replace(gpu, name=f"GPU{index}", index=index) for index, gpu in enumerate(gpus)]
    for entry in entries:
        notes += _notes(entry)
    if stated not in {None, len(gpus)}:
        notes.append(f"nvidia-smi -q counts {stated} GPUs, and {len(gpus)} stand here")
    return facts_of(
        "nvidia-smi-q",
        source,
        host=Host(driver=_known(driver)),
        pci=tuple(devices[gpu.address or ""] for gpu in gpus),
        gpus=tuple(gpus),
        complete=stated in {None, len(gpus)},
        notes=tuple(notes),
    )


# -- the two forms --


def _from_xml(source: Source) -> tuple[str, int | None, list[_Entry]]:
    root = parse(source, _FORM)
    if root.tag != "nvidia_smi_log":
        raise InputError(
            source.at(root.line), f"the outermost element is <{root.tag}>", "expected <nvidia_smi_log>"
        )

    def entry(element: Element) -> _Entry:
        def value(what: str) -> str:
            here: Element | None = element
            for part in _PLACES[what][0].split("/"):
                here = next((child for child in here.children if child.tag == part), None) if here else None
            return here.text.strip() if here else ""

        return _Entry(element.attributes.get("id", "").strip(), source.at(element.line), value)

    def text(tag: str) -> str:
        return next((child.text.strip() for child in root.children if child.tag == tag), "")

    stated = text("attached_gpus")
    count = whole(stated, 0, 256, f"{source.at(root.line)}: attached_gpus") if stated else None
    return text("driver_version"), count, [entry(child) for child in root.children if child.tag == "gpu"]


def _from_text(source: Source) -> tuple[str, int | None, list[_Entry]]:
    top: dict[str, str] = {}
    entries: list[tuple[str, str, dict[str, str]]] = []
    groups: list[tuple[int, str]] = []
    begun = 0
    count: int | None = None
    for line in lines_of(source):
        if _LOG.match(line.text.strip()):
            begun += 1
            if begun > 1:
                raise InputError(
                    source.at(line.number), "a second NVSMI LOG", "give one reading of one machine"
                )
        elif heading := _GPU_LINE.match(line.text):
            entries.append((heading[1], source.at(line.number), {}))
            refuse_crowd(len(entries), "GPUs", source.at(line.number))
            groups = []
        elif field := _TEXT_FIELD.match(line.text):
            groups = [group for group in groups if group[0] < len(field[1])]
            path = "/".join([*(name for _, name in groups), field[2]])
            fields = entries[-1][2] if entries and field[1] else top
            fields.setdefault(path, field[3].strip())
            if path == "Attached GPUs":
                count = whole(field[3].strip(), 0, 256, f"{source.at(line.number)}: Attached GPUs")
        elif group := _TEXT_GROUP.match(line.text):
            groups = [(depth, name) for depth, name in groups if depth < len(group[1])]
            groups.append((len(group[1]), group[2].strip()))
    return (
        top.get("Driver Version", ""),
        count,
        [_Entry(heading, where, _reader_of(fields)) for heading, where, fields in entries],
    )


def _reader_of(fields: dict[str, str]) -> Callable[[str], str]:
    return lambda what: fields.get(_PLACES[what][1], "")


# -- one GPU --


def _known(text: str) -> str | None:
    return None if text in _UNKNOWN else text


def _minor(entry: _Entry) -> int | None:
    text = _known(entry.value("minor"))
    return None if text is None else whole(text, 0, 255, f"{entry.where}: minor number")


def _fabric(entry: _Entry) -> Fabric | None:
    said = [entry.value(what) for what in ("fabric", "fabric_status", "clique", "cluster")]
    return fabric_of(said[0], said[1], said[2], said[3], f"{entry.where}: fabric")


def _device(entry: _Entry) -> PciDevice:
    bus = entry.value("bus") or entry.heading
    address = normalise_address(bus, entry.where)
    if entry.heading and normalise_address(entry.heading, entry.where) != address:
        raise InputError(entry.where, f"the heading says {entry.heading} and the bus id {bus}")
    vendor, device = _pair(entry, "device")
    subsystem_vendor, subsystem_device = _pair(entry, "subsystem")
    own = _generation(entry, "device_max")
    return PciDevice(
        address=address,
        parent=None,
        vendor=vendor,
        device=device,
        subsystem_vendor=subsystem_vendor,
        subsystem_device=subsystem_device,
        class_code=_class(entry),
        # "Max" is what GPU and slot have in common; older drivers print no other.
        link=some_link(
            _generation(entry, "generation"),
            _width(entry, "width"),
            own if own is not None else _generation(entry, "max"),
            _width(entry, "max_width"),
        ),
    )


def _pair(entry: _Entry, what: str) -> tuple[str | None, str | None]:
    """Vendor and device of "233010DE" or "0x233010DE": the device stands first."""
    text = entry.value(what)
    if _known(text) is None:
        return None, None
    match = re.fullmatch(r"(?:0x)?([0-9A-Fa-f]{4})([0-9A-Fa-f]{4})", text)
    if match is None:
        raise InputError(
            f"{entry.where}: {what} id", f"found {text[:40]!r}", "expected a form like 0x233010DE"
        )
    if set(match[1] + match[2]) == {"0"}:
        return None, None
    return f"0x{match[2].lower()}", f"0x{match[1].lower()}"


def _class(entry: _Entry) -> str | None:
    base, sub = _known(entry.value("base")), _known(entry.value("sub"))
    if base is None or sub is None:
        return None
    numbers = [text.removeprefix("0x") for text in (base, sub)]
    if not all(re.fullmatch(r"[0-9A-Fa-f]{1,2}", number) for number in numbers):
        raise InputError(
            f"{entry.where}: class",
            f"found {base[:20]!r} and {sub[:20]!r}",
            "expected numbers like 0x3 and 0x2",
        )
    return "0x" + "".join(f"{int(number, 16):02x}" for number in numbers)


def _generation(entry: _Entry, what: str) -> float | None:
    text = _known(entry.value(what))
    if text is None:
        return None
    if not re.fullmatch(r"[0-9]", text) or int(text) not in {0, *GENERATIONS}:
        raise InputError(f"{entry.where}: PCIe generation", f"found {text[:20]!r}", "expected 1 to 6")
    return GENERATIONS.get(int(text))


def _width(entry: _Entry, what: str) -> int | None:
    text = _known(entry.value(what))
    if text is None:
        return None
    match = re.fullmatch(r"(\d{1,2})x", text, re.ASCII)
    if match is None or int(match[1]) not in {0, *WIDTHS}:
        raise InputError(f"{entry.where}: link width", f"found {text[:20]!r}", "expected a width like 16x")
    return int(match[1]) or None


def _notes(entry: _Entry) -> list[str]:
    address = normalise_address(entry.heading or entry.value("bus"), entry.where)
    notes = []
    if entry.value("mig") == "Enabled":
        notes.append(f"{address}: MIG is on")
    if entry.value("virtual") not in {"", "N/A", "None"}:
        notes.append(
            f"{address}: virtualization mode {entry.value('virtual')[:40]}: this is a virtual machine or its host"
        )
    return notes
