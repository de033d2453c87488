"""Contracts and switch files of the fabric's tests, made up by hand."""

from __future__ import annotations

import copy
import json
from typing import Any

from railwright.captures.source import Source
from railwright.fabric import Contract, Found, Lint, lint
from railwright.fabric.read import read_source
from railwright.node.check import is_open
from railwright.node.model import Finding

# A small rack: each leaf runs another system, two nodes each, one of them on a long cable.
PORTS = {
    "sonic": ("Ethernet0", "Ethernet8"),
    "nvue": ("swp1", "swp2"),
    "eos": ("Ethernet1/1", "Ethernet2/1"),
    "nxos": ("Ethernet1/1", "Ethernet1/2"),
    "h3c": ("FourHundredGigE1/0/1", "FourHundredGigE1/0/2"),
    "huawei": ("400GE1/0/1", "400GE1/0/2"),
}


def contract_data(*systems: str, **more: Any) -> dict[str, Any]:
    """A contract with a leaf of each system, named after it."""
    switches = {
        system: {
            "os": system,
            "platform": "sn5600" if system in {"sonic", "nvue"} else None,
            "ports": {
                PORTS[system][0]: {"host": "gpu01", "nic": f"rail{rail}"},
                PORTS[system][1]: {"host": "gpu02", "nic": f"rail{rail}", "cable_m": 30},
            },
        }
        for rail, system in enumerate(systems)
    }
    return copy.deepcopy({"speed_gbps": 400, "cable_m": 3, "switches": switches, **more})


def contract(*systems: str, **more: Any) -> Contract:
    return Contract.read(contract_data(*systems, **more))


def findings(of: Contract, **texts: str) -> tuple[Finding, ...]:
    """All findings of a contract with switch files, given by switch."""
    return result(of, **texts).findings


def result(of: Contract, **texts: str) -> Lint:
    states = {
        name: read_source(Source(f"{name}.cfg", text), of.switches[name].os, of.switches[name].ports)
        for name, text in texts.items()
    }
    return lint(Found(of, "fabric", None, policy_seen=False), states)


def opened(of: Contract, **texts: str) -> dict[str, Finding]:
    """Open findings by code."""
    return {finding.code: finding for finding in findings(of, **texts) if is_open(finding)}


def stock_sonic(*ports: str) -> dict[str, Any]:
    """What SONiC ships, table by table.

    Values of sonic-buildimage files/build_templates/qos_config.j2 at 086b03bd70, as its documentation tells them: only
    DSCP 3 and 4 are lossless, 46 and 48 have classes of their own, 5 and 8 too, everything else is class 1.
    """
    dscp = {str(point): "1" for point in range(64)} | {
        "3": "3",
        "4": "4",
        "5": "2",
        "8": "0",
        "46": "5",
        "48": "6",
    }
    eight = {str(n): str(n) for n in range(8)}
    return {
        "DSCP_TO_TC_MAP": {"AZURE": dscp},
        "TC_TO_QUEUE_MAP": {"AZURE": eight},
        "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": dict.fromkeys(eight, "0") | {"3": "3", "4": "4", "7": "7"}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": eight},
        "SCHEDULER": {
            "scheduler.0": {"type": "DWRR", "weight": "14"},
            "scheduler.1": {"type": "DWRR", "weight": "15"},
        },
        "WRED_PROFILE": {
            "AZURE_LOSSLESS": {
                "ecn": "ecn_all",
                "green_min_threshold": "1048576",
                "green_max_threshold": "2097152",
                "green_drop_probability": "5",
            }
        },
        "PORT_QOS_MAP": {"global": {"dscp_to_tc_map": "AZURE"}}
        | {
            port: {
                "dscp_to_tc_map": "AZURE",
                "tc_to_queue_map": "AZURE",
                "tc_to_pg_map": "AZURE",
                "pfc_to_queue_map": "AZURE",
                "pfc_enable": "3,4",
                "pfcwd_sw_enable": "3,4",
            }
            for port in ports
        },
        "QUEUE": {
            f"{port}|{queue}": {"scheduler": "scheduler.1", "wred_profile": "AZURE_LOSSLESS"}
            if queue in (3, 4)
            else {"scheduler": "scheduler.0"}
            for port in ports
            for queue in range(7)
        },
        "CABLE_LENGTH": {"AZURE": dict.fromkeys(ports, "40m")},
        "PORT": {port: {"mtu": "9100", "speed": "400000"} for port in ports},
        "PFC_WD": {
            port: {"action": "drop", "detection_time": "200", "restoration_time": "200"} for port in ports
        },
    }


def as_file(tables: dict[str, Any]) -> str:
    return json.dumps(tables, indent=4) + "\n"


# Right configurations as a person would write them: other names, other order than the renderers'.
RIGHT_NVUE = """\
- header:
    model: SN5600
    nvue-api-version: nvue_v1
- set:
    system:
      hostname: nvue
    interface:
      swp1-2:
        type: swp
        link:
          mtu: 9216
        qos:
          pfc-watchdog: {}
    qos:
      roce:
        mode: lossless
      congestion-control:
        default-global:
          traffic-class:
            '3':
              min-threshold: 500000
              max-threshold: 3000000
              probability: 10
      pfc:
        default-global:
          switch-priority:
            '3': {}
          cable-length: 40
"""
RIGHT_EOS = """\
! Command: show running-config
hostname eos
!
banner motd
 interface Ethernet1/1 is nobody's business
EOF
!
qos map dscp af31 to traffic-class 3
!
qos profile lossless
   qos trust dscp
   uc-tx-queue 6
      priority strict
   uc-tx-queue 3
      no priority
      bandwidth percent 60
      random-detect ecn minimum-threshold 500 kbytes maximum-threshold 3 mbytes max-mark-probability 10 weight 0
   !
   priority-flow-control on
   priority-flow-control priority 3 no-drop
!
priority-flow-control pause watchdog default timeout 0.2
!
interface Ethernet1/1
   description gpu01 rail0
   no switchport
   mtu 9214
   service-profile lossless
!
interface Ethernet2/1
   no switchport
   mtu 9214
   service-profile lossless
!
end
"""
RIGHT_NXOS = """\
version 10.4(3)
hostname nxos
class-map type qos match-any ROCE
  match dscp 24,26
class-map type qos match-any CNP
  match dscp cs6
policy-map type qos IN
  class ROCE
    set qos-group 3
  class CNP
    set qos-group 7
policy-map type network-qos NQ
  class type network-qos c-8q-nq3
    mtu 9216
    pause pfc-cos 3
  class type network-qos c-8q-nq-default
    mtu 9216
policy-map type queuing OUT
  class type queuing c-out-8q-q7
    priority level 1
  class type queuing c-out-8q-q3
    bandwidth remaining percent 60
    random-detect minimum-threshold 500 kbytes maximum-threshold 3000 kbytes drop-probability 10 weight 0 ecn
  class type queuing c-out-8q-q-default
    bandwidth remaining percent 40
system qos
  service-policy type network-qos NQ
  service-policy type queuing output OUT
interface Ethernet1/1-2
  mtu 9216
  priority-flow-control mode on
  priority-flow-control watch-dog-interval on
  service-policy type qos input IN
"""


def right_sonic(*ports: str) -> dict[str, Any]:
    """SONiC's stock tables with what a contract for DSCP 26 and 48 mends, under SONiC's own names."""
    tables = stock_sonic(*ports)
    tables["DSCP_TO_TC_MAP"]["AZURE"] |= {"26": "3", "3": "1"}
    tables["SCHEDULER"]["strict"] = {"type": "STRICT"}
    tables["WRED_PROFILE"]["AZURE_LOSSLESS"] |= {
        "green_min_threshold": "500000",
        "green_max_threshold": "3000000",
        "green_drop_probability": "10",
    }
    for port in ports:
        tables["PORT_QOS_MAP"][port] |= {"pfc_enable": "3", "pfcwd_sw_enable": "3"}
        tables["QUEUE"][f"{port}|6"] = {"scheduler": "strict"}
    return tables
