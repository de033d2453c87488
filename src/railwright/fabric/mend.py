"""The line that mends a disagreement, in the words of each system.

Each text is formatted with: port, dscp, prio, prios, queue, name (the map or profile that holds the value), low, high,
low_kb, high_kb, chance, mtu, cable. Backticks mark what can be pasted.
"""

from __future__ import annotations

from collections.abc import Mapping

_SONIC = {
    "port": 'render the port and load it: `"PORT_QOS_MAP": {{"{port}": {{"dscp_to_tc_map": "..."}}}}`',
    "trust": '`"PORT_QOS_MAP": {{"{port}": {{"dscp_to_tc_map": "{name}"}}}}`',
    "dscp": '`"DSCP_TO_TC_MAP": {{"{name}": {{"{dscp}": "{prio}"}}}}`',
    "queue": '`"TC_TO_QUEUE_MAP": {{"{name}": {{"{prio}": "{prio}"}}}}`',
    "share": '`"TC_TO_QUEUE_MAP": {{"{name}": {{"{other}": "{other}"}}}}`',
    "group": '`"TC_TO_PRIORITY_GROUP_MAP": {{"{name}": {{"{prio}": "{prio}"}}}}`',
    "group_share": '`"TC_TO_PRIORITY_GROUP_MAP": {{"{name}": {{"{other}": "0"}}}}`',
    "pfc_queue": '`"MAP_PFC_PRIORITY_TO_QUEUE": {{"{name}": {{"{prio}": "{queue}"}}}}`',
    "pfc": '`"PORT_QOS_MAP": {{"{port}": {{"pfc_enable": "{prios}"}}}}`',
    "watchdog": '`"PORT_QOS_MAP": {{"{port}": {{"pfcwd_sw_enable": "{prios}"}}}}` and '
    '`"PFC_WD": {{"{port}": {{"action": "drop", "detection_time": "{detect}", "restoration_time": "{restore}"}}}}`',
    "ecn": '`"QUEUE": {{"{port}|{queue}": {{"wred_profile": "RAILWRIGHT_{speed}G"}}}}` with a WRED_PROFILE of ecn_all',
    "thresholds": '`"WRED_PROFILE": {{"{name}": {{"green_min_threshold": "{low}", "green_max_threshold": "{high}", '
    '"green_drop_probability": "{chance}"}}}}`',
    "strict": '`"QUEUE": {{"{port}|{queue}": {{"scheduler": "RAILWRIGHT_STRICT"}}}}` with a SCHEDULER of type STRICT',
    "mtu": '`"PORT": {{"{port}": {{"mtu": "{mtu}"}}}}`',
    "pause": "turn 802.3x pause off on {port}",
    "cable": '`"CABLE_LENGTH": {{"{name}": {{"{port}": "{cable}m"}}}}`',
    "speed": '`"PORT": {{"{port}": {{"speed": "{speed}000"}}}}`, or mend the contract',
    "xoff": '`"BUFFER_PROFILE": {{"{name}": {{"xoff": "{high}"}}}}`',
}
_NVUE = {
    "port": "`nv set interface {port}`",
    "trust": "`nv set qos mapping default-global trust l3`",
    "dscp": "`nv set qos mapping default-global dscp {dscp} switch-priority {prio}`",
    "queue": "`nv set qos egress-queue-mapping default-global switch-priority {prio} traffic-class {prio}`",
    "share": "`nv set qos egress-queue-mapping default-global switch-priority {other} traffic-class 0`",
    "pfc": "`nv set qos roce mode lossless` and `nv set qos pfc default-global switch-priority {prios}`",
    "watchdog": "`nv set interface {port} qos pfc-watchdog`",
    "ecn": "`nv set qos congestion-control default-global traffic-class {queue} min-threshold {low}`, the same with "
    "max-threshold {high} and probability {chance}",
    "thresholds": "`nv set qos congestion-control default-global traffic-class {queue} min-threshold {low}`, the same "
    "with max-threshold {high} and probability {chance}",
    "strict": "`nv set qos egress-scheduler default-global traffic-class {queue} mode strict`",
    "mtu": "`nv set interface {port} link mtu {mtu}`",
    "pause": "`nv unset interface {port} qos link-pause`",
    "cable": "`nv set qos pfc default-global cable-length {cable}`",
}
_EOS = {
    "port": "`interface {port}`",
    "trust": "`qos trust dscp` under interface {port} or its qos profile",
    "dscp": "`qos map dscp {dscp} to traffic-class {prio}`",
    "queue": "`qos map traffic-class {prio} to tx-queue {prio}`",
    "share": "`qos map traffic-class {other} to tx-queue {other}`",
    "pfc": "`priority-flow-control on` and `priority-flow-control priority {prios} no-drop` in {holder}; "
    "`priority-flow-control priority N drop` for any other",
    "watchdog": "`priority-flow-control pause watchdog` in {holder}",
    "ecn": "`random-detect ecn minimum-threshold {low} bytes maximum-threshold {high} bytes max-mark-probability "
    "{chance} weight 0` under queue {queue} of {holder}",
    "thresholds": "`random-detect ecn minimum-threshold {low} bytes maximum-threshold {high} bytes "
    "max-mark-probability {chance} weight 0` under queue {queue} of {holder}",
    "strict": "`priority strict` under queue {queue} of {holder}",
    "mtu": "`mtu {mtu}` under interface {port}",
    "pause": "`flowcontrol send off` and `flowcontrol receive off` under interface {port}",
}
_NXOS = {
    "port": "`interface {port}`",
    "trust": "`service-policy type qos input RAILWRIGHT-IN` under interface {port}",
    "dscp": "`match dscp {dscp}` in a class-map type qos whose class sets `set qos-group {prio}`",
    "queue": "`set qos-group {prio}`",
    "share": "`set qos-group 0` for what is not lossless",
    "pfc_queue": "`pause pfc-cos {prio}` under class type network-qos c-8q-nq{queue}",
    "pfc": "`priority-flow-control mode on` under interface {port}, `pause pfc-cos {prios}` in the network-qos policy",
    "watchdog": "`priority-flow-control watch-dog-interval on` under interface {port}",
    "ecn": "`random-detect minimum-threshold {low_kb} kbytes maximum-threshold {high_kb} kbytes drop-probability "
    "{chance} weight 0 ecn` under class type queuing c-out-8q-q{queue}",
    "thresholds": "`random-detect minimum-threshold {low_kb} kbytes maximum-threshold {high_kb} kbytes "
    "drop-probability {chance} weight 0 ecn` under class type queuing c-out-8q-q{queue}",
    "strict": "`priority level 1` under class type queuing c-out-8q-q{queue}",
    "mtu": "`mtu {mtu}` under interface {port}",
    "pause": "`flowcontrol send off` and `flowcontrol receive off` under interface {port}",
}
LINES: Mapping[str, Mapping[str, str]] = {"sonic": _SONIC, "nvue": _NVUE, "eos": _EOS, "nxos": _NXOS}
# The largest MTU that each system takes on a port.
LARGEST_MTU = {"sonic": 9216, "nvue": 9216, "eos": 9214, "nxos": 9216}


def strict_class(system: str, prio: int) -> int:
    """The traffic class of a strict class on a switch: its priority, but queue 7 on Nexus, where `priority level 1`
    is the first queue's (Cisco's AI/ML blueprint)."""
    return 7 if system == "nxos" else prio


def mend(system: str, kind: str, **values: object) -> str:
    """The line for a disagreement of this kind."""
    name = values.get("name")
    values["holder"] = f"qos profile {name}" if name else f"interface {values.get('port')}"
    return LINES[system][kind].format(**values)
