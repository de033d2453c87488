#!/usr/bin/python
"""What only a live node can answer before an installation: all thinking is in railwright.node.preflight."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_preflight
short_description: Ask a node what an installation needs to know
version_added: "0.2.0"
description:
  - Tells the node's Python and clock, and whether it reaches each address that a run needs, or has it in a folder of
    its own. It changes nothing.
options:
  urls:
    description: Addresses that are asked for (C(http), C(https)) or looked for (C(file), or a path).
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
- name: Ask what the node reaches
  node_preflight:
    urls: [file:///srv/packages/InRelease]
"""

RETURN = r"""
ansible_facts:
  description: The answer, under C(preflight).
  returned: success
  type: dict
  contains:
    preflight:
      description: Python, clock, proxy and what was reached.
      type: dict
"""

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.model import InputError, to_json
from ansible.module_utils.railwright.node.preflight import probe


def main() -> None:
    module = AnsibleModule(
        argument_spec={"urls": {"type": "list", "elements": "str", "default": []}},
        supports_check_mode=True,
    )
    try:
        found = probe(module.params["urls"])
    except InputError as error:
        module.fail_json(msg=str(error), where=error.where, why=error.why, remedy=error.remedy)
    module.exit_json(changed=False, ansible_facts={"preflight": to_json(found)})


if __name__ == "__main__":
    main()
