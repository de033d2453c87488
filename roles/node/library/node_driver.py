#!/usr/bin/python
"""What the driver of a node is doing: all thinking is in railwright.node.driver_use."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_driver
short_description: Tell who uses the driver, and whether CUDA works on every GPU
version_added: "0.2.0"
description:
  - Looks for processes that have a GPU's file open and at the reference count of the module C(nvidia) above that of
    the modules that depend on it. It changes nothing.
options:
  cuda:
    description: Whether to allocate, fill and read back memory on every GPU.
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
- name: Ask who uses the driver
  node_driver:
"""

RETURN = r"""
ansible_facts:
  description: The answer, under C(driver).
  returned: success
  type: dict
  contains:
    driver:
      description: Users, reference count and what CUDA said.
      type: dict
"""

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.driver_use import driver_use
from ansible.module_utils.railwright.node.model import to_json


def main() -> None:
    module = AnsibleModule(
        argument_spec={"cuda": {"type": "bool", "default": False}}, supports_check_mode=True
    )
    module.exit_json(changed=False, ansible_facts={"driver": to_json(driver_use(cuda=module.params["cuda"]))})


if __name__ == "__main__":
    main()
