"""Registers, queues and firmware of NICs and bridges against the plan, and errors that PCIe has counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

from .. import nvconfig
from ..discover.hardware_tools import TOPOLOGY, firmware_tool
from ..discover.tools import silence
from ..model import Facts, Finding, InputError, PciDevice, Plan, Queues, Tool
from .answer import Answer, elsewhere, listed, unseen

Entry = dict[str, Any]
_RETUNE = "run `ansible-playbook -i INVENTORY playbooks/retune.yml -l NODE`"
_READ_AGAIN = "read the node again: railwright check PLAN"
_ACS = ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans")
# What decides where peer traffic goes: SrcValid and TransBlk do not.
_JUDGED = 0b1011100
_SMALLEST_READ = 128
# What NVIDIA's documentation has on bare metal; another value is somebody's choice, and is told.
_USUAL = {
    "ATS_ENABLED": "0",
    "LLDP_NB_DCBX_P1": "0",
    "LLDP_NB_RX_MODE_P1": "0",
    "LLDP_NB_TX_MODE_P1": "0",
    "MAX_ACC_OUT_READ": "0",
    "NUM_OF_PFC": "8",
    "NUM_OF_TC": "8",
    "PCI_WR_ORDERING": "0",
    "SRIOV_EN": "0",
    "INTERNAL_CPU_OFFLOAD_ENGINE": "1",
}


def answers(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """What no entry of the plan speaks of: firmware settings and ACS's other judge."""
    yield from _firmware(plan, facts)
    yield from _topology(facts)


def pci_register(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """A register of a slice; read requests, relaxed ordering and ACS are what the facts tell."""
    address, mask, value = entry["device"], int(entry["mask"], 16), int(entry["value"], 16)
    device = next((device for device in facts.pci if device.address == address), None)
    what, now = _told(device, entry["capability"], mask)
    code = f"{name}.{what}"
    if device is None:
        yield unseen(code, address, "the facts hold no such PCI function", _READ_AGAIN)
    elif now is None:
        yield unseen(code, address, "its configuration space was not readable", "read the node as root")
    elif not (now ^ value) & mask & (_JUDGED if what == "acs" else mask):
        yield Answer(code)
    else:
        told = f"is {_worded(what, now & mask)}, planned {_worded(what, value)}"
        yield Answer(code, Finding(code, "error", address, told, _RETUNE))


def queues(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """Channels, rings or coalescing of a netdev."""
    code, address = f"{name}.{entry['kind'].rpartition('_')[2]}", entry["device"]
    netdevs = {nic.netdev for nic in facts.nics if nic.address == address}
    found = next((one for one in facts.queues if one.netdev in netdevs), None)
    if found is None:
        yield unseen(code, address, "the facts hold no queues of its netdev", _READ_AGAIN)
        return
    told = _numbers(found, entry["kind"])
    asked = {key: wish for key, wish in entry.items() if key in told}
    dark = [key for key in asked if told[key] is None]
    other = [
        f"{key} is {told[key]}, planned {wish}"
        for key, wish in asked.items()
        if told[key] not in (None, wish)
    ]
    if other:
        yield Answer(code, Finding(code, "error", found.netdev, "; ".join(other), _RETUNE))
    elif dark:
        yield unseen(
            code, found.netdev, f"the driver does not tell {', '.join(dark)}", f"ethtool -l {found.netdev}"
        )
    else:
        yield Answer(code)


def queue_cpus(facts: Facts, name: str, entry: Entry) -> Iterator[Answer]:
    """No witness tells of the CPUs of queues."""
    code = f"{name}.{entry['steering']}"
    yield unseen(
        code, entry["device"], f"the facts hold no {entry['steering']}_cpus", "node_state with --check tells"
    )


KINDS: dict[str, Callable[[Facts, str, Entry], Iterator[Answer]]] = {
    "pci_register": pci_register,
    "ethtool_channels": queues,
    "ethtool_rings": queues,
    "ethtool_coalesce": queues,
    "queue_cpus": queue_cpus,
    # Each setting of a card's firmware is judged once, with those that the plan only looks at.
    "nvconfig": elsewhere,
}


def grown(before: Facts, after: Facts) -> Iterator[Answer]:
    """Errors that PCIe counted between two readings of one boot; across a boot nothing can be said."""
    code = "pcie.aer"
    if not before.pcie_errors or not after.pcie_errors:
        yield Answer(code, seen=False, why="the kernel keeps no counters of PCIe errors here (AER)")
        return
    if before.host.boot_id is None or before.host.boot_id != after.host.boot_id:
        yield Answer(code, seen=False, why="the node was booted in between: its counters began anew")
        return
    elder = {errors.address: errors for errors in before.pcie_errors}
    for now in after.pcie_errors:
        then = elder.get(now.address)
        if then is None:
            continue
        for what, severity in (("fatal", "error"), ("nonfatal", "error"), ("correctable", "warning")):
            first, last = getattr(then, what), getattr(now, what)
            if first is None or last is None or last < first:
                continue  # not told, or reset with the device
            if last > first:
                why = f"{last - first} {what} errors since the node was first read in this run"
                remedy = "reseat the card, riser and cable; update BIOS and firmware; dmesg names the errors"
                yield Answer(code, Finding(code, severity, now.address, why, remedy))
                break
        else:
            yield Answer(code)


def _told(device: Optional[PciDevice], capability: str, mask: int) -> tuple[str, Optional[int]]:
    """What a register is called, and its bits as the facts tell them."""
    if capability == "ECAP_ACS":
        if device is None or device.acs is None:
            return "acs", None
        return "acs", sum(1 << _ACS.index(bit) for bit in device.acs.control if bit in _ACS)
    if mask == 0x7000:
        size = None if device is None else device.mrrs
        return "read_request", None if size is None else (size // _SMALLEST_READ).bit_length() - 1 << 12
    if mask == 0x0010:
        relaxed = None if device is None else device.relaxed_ordering
        return "relaxed_ordering", None if relaxed is None else 0x0010 * relaxed
    return "register", None


def _worded(what: str, value: int) -> str:
    if what == "acs":
        return "+".join(name for bit, name in enumerate(_ACS) if value >> bit & 1) or "none"
    if what == "read_request":
        return f"{_SMALLEST_READ << (value >> 12)} bytes"
    return "on" if value else "off"


def _numbers(found: Queues, kind: str) -> dict[str, Optional[int]]:
    if kind == "ethtool_channels":
        return {"combined": found.combined}
    if kind == "ethtool_rings":
        return {"rx": found.rx_ring, "tx": found.tx_ring}
    adaptive = {
        name: None if value is None else int(value)
        for name, value in (("adaptive_rx", found.adaptive_rx), ("adaptive_tx", found.adaptive_tx))
    }
    return {**adaptive, "rx_usecs": found.rx_usecs, "tx_usecs": found.tx_usecs}


# ----- firmware ------------------------------------------------------------------------------------------------------


def _firmware(plan: Plan, facts: Facts) -> Iterator[Answer]:
    """What a card is set to, in force and after its next reset, for every rail NIC that the facts tell it of."""
    wished = plan.network.nic_firmware
    written = "nic_firmware" in plan.slices
    tools = {tool.name: tool for tool in facts.tools}
    cards = dict.fromkeys(_card(nic.pci) for nic in plan.nics if nic.role == "rail" and nic.pci is not None)
    told = {
        _card(name[len(firmware_tool("")) :]): tools[name]
        for name in tools
        if name.startswith(firmware_tool(""))
    }
    for card in cards:
        tool = told.get(card)
        why = "the firmware's settings were not asked for" if tool is None else silence(tool)
        if tool is None or why is not None:
            if wished:
                yield unseen(
                    "nic_firmware.setting", card, why or "", f"mstconfig -d {card}.0 -e q (mstflint)"
                )
            continue
        yield from _card_settings(card, tool, wished, written, facts)


def _card_settings(
    card: str, tool: Tool, wished: Mapping[str, str], written: bool, facts: Facts
) -> Iterator[Answer]:
    try:
        settings = nvconfig.parse(tool.output, " ".join(tool.argv))
    except InputError as error:
        yield unseen("nic_firmware.setting", card, f"{error.where}: {error.why}", error.remedy)
        return
    other, absent = [], []
    for name, state, found in nvconfig.states(settings, wished):
        if state == "other" and found is not None:
            other.append(f"{name} is {found.next}, wanted {wished[name]}")
        elif state in ("absent", "hidden"):
            absent.append(name)
    if other:
        remedy = (
            _RETUNE if written else "set policy.nic_firmware.write to have it written, or correct the policy"
        )
        code = "nic_firmware.setting"
        yield Answer(code, Finding(code, "error" if written else "warning", card, listed(other), remedy))
    elif wished:
        yield Answer("nic_firmware.setting")
    if absent:
        why = f"the card does not show {', '.join(absent)}"
        remedy = (
            "leave them out for this kind of card; some are hidden until ADVANCED_PCI_SETTINGS is in force"
        )
        yield Answer("nic_firmware.absent", Finding("nic_firmware.absent", "info", card, why, remedy))
    yield _pending(card, settings)
    unusual = _unusual(settings, wished, facts)
    if unusual:
        code = "nic_firmware.unusual"
        remedy = "name the value in policy.nic_firmware.settings if it is meant; it is looked at then"
        yield Answer(code, Finding(code, "info", card, listed(unusual), remedy))


def _pending(card: str, settings: Mapping[str, nvconfig.Setting]) -> Answer:
    code = "nic_firmware.pending"
    waiting = [
        f"{name} is {found.current}, and {found.next} after that"
        for name, found in settings.items()
        if found.current != found.next
    ]
    if not waiting:
        return Answer(code)
    remedy = (
        f"reboot the node, or reset the card on a drained node: mstfwreset -d {card}.0 q tells the levels"
    )
    return Answer(
        code, Finding(code, "warning", card, f"waits for a reset or reboot: {listed(waiting)}", remedy)
    )


def _unusual(settings: Mapping[str, nvconfig.Setting], wished: Mapping[str, str], facts: Facts) -> list[str]:
    return [
        f"{name} is {settings[name].current}, usual on bare metal is {usual}"
        for name, usual in _USUAL.items()
        if name in settings
        and name not in wished
        and facts.host.virtual == ""
        and not nvconfig.same(settings[name].current, usual)
    ]


def _card(address: str) -> str:
    return address.rpartition(".")[0]


def _topology(facts: Facts) -> Iterator[Answer]:
    """rdma_topo knows Grace and ConnectX-8 machines, whose ACS nobody else computes."""
    tool = next((tool for tool in facts.tools if tool.name == TOPOLOGY), None)
    if tool is None:
        return
    code = "pcie.topology"
    if tool.code is None:
        yield unseen(
            code, "pcie", "rdma_topo is not on the node", "install rdma-core 61 or later: rdma_topo check"
        )
    elif tool.code != 0:
        last = next(iter(reversed(tool.output.strip().splitlines())), "without a word")
        remedy = "rdma_topo write-grub-acs --dry-run shows what it would set; then reboot"
        yield Answer(code, Finding(code, "warning", "pcie", f"rdma_topo check: {last[:200]}", remedy))
    else:
        yield Answer(code, why="rdma_topo finds it right")
