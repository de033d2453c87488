#!/usr/bin/python
"""Which NCCL, CUDA runtime and libibverbs the runtimes of a node load: all thinking is in railwright.node.libraries."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_libraries
short_description: Tell which NCCL, CUDA runtime and libibverbs each runtime of a node loads
version_added: "0.2.0"
description:
  - Reads the dynamic linker's cache, the runtimes' files and the memory maps of running processes. It runs nothing of
    what it finds, and changes nothing.
options:
  expect:
    description: What is meant, version by library.
    type: dict
    default: {}
  places:
    description: Folders to look through instead of the usual ones.
    type: list
    elements: str
    default: []
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
- name: Ask which libraries are loaded
  node_libraries:
    expect: {libnccl: 2.30.4}
"""

RETURN = r"""
ansible_facts:
  description: The answer, under C(libraries).
  returned: success
  type: dict
  contains:
    libraries:
      description: Copies, runtimes, processes and findings.
      type: dict
"""

from pathlib import Path

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.discover.tree import Tree
from ansible.module_utils.railwright.node.libraries import PLACES, audit
from ansible.module_utils.railwright.node.model import to_json


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "expect": {"type": "dict", "default": {}},
            "places": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    places = [place.strip("/") for place in module.params["places"]] or PLACES
    expect = [(name, str(version)) for name, version in module.params["expect"].items()]
    found = audit(Tree(Path("/")), expect=expect, places=places)
    module.exit_json(changed=False, ansible_facts={"libraries": to_json(found)})


if __name__ == "__main__":
    main()
