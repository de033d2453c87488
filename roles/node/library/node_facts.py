#!/usr/bin/python
"""The one module that reads a node: all thinking is in railwright.node.discover."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_facts
short_description: Read a node as it is
version_added: "0.1.0"
description:
  - Reads the PCI tree and config space, NUMA nodes, cores, NICs, interrupts and settings from C(/sys), C(/proc) and
    C(/etc) in one call. It needs no NVIDIA driver and changes nothing.
  - What cannot be known is null. What no kernel would write is an error that names the file.
options:
  watch:
    description: Files whose digest, mode and owner are wanted.
    type: list
    elements: path
    default: []
  units:
    description: systemd units whose state is wanted; that of irqbalance is always read.
    type: list
    elements: str
    default: []
  sysctls:
    description:
      - Kernel parameters that are wanted besides those that a plan may set by itself, those of the NICs' interfaces
        and those that C(/etc/sysctl.d) names.
    type: list
    elements: str
    default: []
  packages:
    description: Packages whose version and hold are wanted besides those of a GPU node's stack.
    type: list
    elements: str
    default: []
  tools:
    description:
      - Whether to keep what C(lspci), C(nvidia-smi), C(systemctl) and C(ip) say, as other witnesses, and what C(dcb),
        C(ethtool -a) and C(lldpcli) say of the ports of an Ethernet fabric.
    type: bool
    default: false
attributes:
  check_mode:
    description: It only reads.
    support: full
  diff_mode:
    description: It changes nothing.
    support: none
  platform:
    description: Where it works.
    support: full
    platforms: linux
author:
  - Railwright
"""

EXAMPLES = r"""
- name: Read the node
  node_facts:

- name: Read the node again, with the files that its plan writes and other tools' answers
  node_facts:
    watch: [/etc/nccl.conf]
    units: [railwright.service]
    tools: true
"""

RETURN = r"""
ansible_facts:
  description: The facts, under C(node), in the form that the planner reads.
  returned: success
  type: dict
  contains:
    node:
      description: One machine, schema C(railwright.facts/1).
      type: dict
"""

from pathlib import Path

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.discover import discover
from ansible.module_utils.railwright.node.model import InputError, to_json


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "watch": {"type": "list", "elements": "path", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "sysctls": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "tools": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        facts = discover(
            Path("/"),
            watch=params["watch"],
            units=params["units"],
            sysctls=params["sysctls"],
            packages=params["packages"],
            tools=params["tools"],
        )
    except InputError as error:
        module.fail_json(msg=str(error), where=error.where, why=error.why, remedy=error.remedy)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    module.exit_json(changed=False, ansible_facts={"node": to_json(facts)})


if __name__ == "__main__":
    main()
