"""GPUs and NICs of the picture, one row each."""

from __future__ import annotations

from railwright.node.model import LoadedLink
from railwright.plan.nvlink import link_count

from .layout import Measures, Place
from .marks import alarm_mark, badge, fill, gpu_mark, has_core, is_neck, neck, nic_mark, stroke
from .markup import element, words
from .numbers import count, network_rate
from .tracks import link_words, load_over_capacity
from .tree import Station, address_of
from .visible import shorten

_ASIDE = 20.0  # from the mark to the text
_PORT = 34.0  # length of a port's bottleneck


def device(
    place: Place, right: float, measures: Measures, severity: str | None, port: LoadedLink | None
) -> str:
    """A GPU or NIC with its name, address and place. severity: of a finding on it. port: a NIC's way out."""
    station = place.station
    drawn = _gpu(place, right, measures) if station.kind == "gpu" else _nic(place, right, measures, port)
    if severity is not None:
        drawn += alarm_mark(place.x + 10, place.y + 11, severity)
    kind = "gpu-row" if station.kind == "gpu" else "nic-row"
    return element("g", element("title", words(_told(station, port))), drawn, class_=kind)


def _told(station: Station, port: LoadedLink | None) -> str:
    planned = station.planned_gpu or station.planned_nic
    model = None
    if station.gpu is not None:
        model = station.gpu.model
    elif station.nic is not None:
        model = station.nic.board
    text = ", ".join([*dict.fromkeys((station.label, *station.names)), *([model] if model else [])])
    if planned is not None:
        text += f": {planned.because}"
    return text if port is None else f"{text}. {link_words('Port to the network', port)}"


def _gpu(place: Place, right: float, measures: Measures) -> str:
    station, planned, x, y = place.station, place.station.planned_gpu, place.x, place.y
    index = station.gpu.index if station.gpu is not None else planned.index if planned is not None else None
    slot = planned.slot if planned is not None else None
    served = planned is not None and bool(planned.nics)
    drawn = gpu_mark(x, y, "?" if index is None else str(index), served)
    drawn += _name(x, y - 2, station, measures, "name", f"slot {shorten(slot, 12)}" if slot else "")
    drawn += _detail(x, y + 12, _gpu_detail(station, measures.names), measures.detail)
    if planned is None:
        return drawn + _note(right - 6, y - 2, "not planned")
    if not served:
        return drawn + _note(right - 6, y - 2, "no NIC")
    path = shorten(planned.path or "path unknown", 12)
    if planned.rail is None:
        return drawn + _note(right - 6, y - 2, path)
    return drawn + _note(right - 32, y - 2, path) + badge(right - 12, y - 6, planned.rail, 8.5)


def _address(station: Station) -> str | None:
    """The address, unless the name is the address."""
    address = address_of(station)
    return None if address == station.label else address


def _gpu_detail(station: Station, full: bool) -> str:
    parts = [_address(station)]
    gpu = station.gpu
    if gpu is not None and gpu.nvlinks:
        links = link_count(gpu.nvlinks)
        # NV18 is nvidia-smi's word for it.
        parts.append(count(links, "NVLink") if full else f"NV{links}")
    if gpu is not None and gpu.c2c is not None:
        parts.append("C2C")
    if gpu is not None and gpu.partial:
        parts.append("row cut")
    return " · ".join(part for part in parts if part)


def _nic(place: Place, right: float, measures: Measures, port: LoadedLink | None) -> str:
    station, planned, x, y = place.station, place.station.planned_nic, place.x, place.y
    role = planned.role if planned is not None else "not planned"
    rail = planned.rail if planned is not None else None
    detail = _nic_detail(station, measures.names)
    if role != "rail":
        return (
            nic_mark(x, y, role, rail)
            + _name(x, y - 2, station, measures, "mute", role)
            + _detail(x, y + 12, detail, measures.detail)
        )
    drawn = _way_out(x, y, right, rail, measures.line)
    text = "rail unknown" if rail is None else f"rail {rail}"
    if port is not None and is_neck(port):
        shared = len(port.flows) > 1
        drawn = neck(f"M{right - 18 - _PORT:.1f} {y:.1f}H{right - 18:.1f}", 11.0, shared) + drawn
        shape = "num end hot" if shared else "num end"
        load = element("text", words(load_over_capacity(port)), class_=shape, x=right - 64, y=y - 5)
        drawn += load if measures.names else ""
    drawn += nic_mark(x, y, role, rail)
    drawn += _name(x, y - 5, station, measures, "name", "")
    drawn += _detail(x, y + 14, detail, measures.detail)
    return drawn + _note(right - 26, y - (9 if is_neck(port) else 5), text)


def _way_out(x: float, y: float, right: float, rail: int | None, width: float) -> str:
    """The rail leaves the node."""
    path = f"M{x:.1f} {y:.1f}H{right - 12:.1f}"
    drawn = element("path", class_=f"exit {stroke(rail)}", d=path, stroke_width=width)
    if has_core(rail):
        drawn += element("path", class_="core", d=path)
    return drawn + element("path", class_=fill(rail), d=f"M{right - 15:.1f} {y - 5:.1f}l8 5l-8 5z")


def _nic_detail(station: Station, full: bool) -> str:
    parts = [_address(station)]
    nic = station.nic
    if nic is not None:
        down = nic.state is not None and nic.state != "active"
        parts.append(nic.state if down else network_rate(nic.rate, short=not full))
        if nic.port is not None and nic.port > 1:
            parts.append(f"port {nic.port}")
    return " · ".join(part for part in parts if part)


def _name(x: float, y: float, station: Station, measures: Measures, shape: str, aside: str) -> str:
    return element(
        "text",
        element("tspan", words(shorten(station.label, measures.name)), class_=shape),
        element("tspan", words(aside), class_="mute", dx=8) if aside else "",
        x=x + _ASIDE,
        y=y,
    )


def _detail(x: float, y: float, text: str, most: int) -> str:
    return element("text", words(shorten(text, most)), class_="small", x=x + _ASIDE, y=y) if text else ""


def _note(x: float, y: float, text: str) -> str:
    return element("text", words(text), class_="mute end", x=x, y=y)
