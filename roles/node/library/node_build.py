#!/usr/bin/python
"""A build of NCCL and nccl-tests into packages: all thinking is in railwright.node.builder."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_build
short_description: Build NCCL and nccl-tests into packages, or take them from the cache
version_added: "0.2.0"
description:
  - Builds as an unprivileged user in a scratch folder, and keeps packages and manifest in a cache that knows them
    by everything that decides about them. What the cache holds whole is not built again.
options:
  requests:
    description: What is built, NCCL first.
    type: list
    elements: dict
    required: true
  place:
    description: Where and as whom.
    type: dict
    required: true
attributes:
  check_mode:
    description: A build changes the build node's cache only; in check mode it is left out.
    support: none
  diff_mode:
    description: Packages have no diff.
    support: none
  platform:
    description: Where it works.
    support: full
    platforms: linux
author:
  - Railwright
"""

EXAMPLES = r"""
- name: Build NCCL
  node_build:
    requests: "{{ requests }}"
    place: {scratch: /var/lib/railwright/build, cache: /var/cache/railwright/builds}
"""

RETURN = r"""
ansible_facts:
  description: The answer, under C(built).
  returned: success
  type: dict
  contains:
    built:
      description: The folder with the packages, and what was built for it.
      type: dict
"""

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.builder import build
from ansible.module_utils.railwright.node.builder.model import read_place, read_requests
from ansible.module_utils.railwright.node.model import InputError, to_json
from ansible.module_utils.railwright.node.state.outcome import Refused


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "requests": {"type": "list", "elements": "dict", "required": True},
            "place": {"type": "dict", "required": True},
        },
        supports_check_mode=False,
    )
    try:
        built = build(
            read_requests(module.params["requests"], "requests"), read_place(module.params["place"], "place")
        )
    except InputError as error:
        module.fail_json(msg=str(error), where=error.where, why=error.why, remedy=error.remedy)
    except Refused as error:
        module.fail_json(
            msg=f"{error.why} ({error.remedy})", where="build", why=error.why, remedy=error.remedy
        )
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}", where=str(error.filename), why=str(error))
    module.exit_json(changed=bool(built.made), ansible_facts={"built": to_json(built)})


if __name__ == "__main__":
    main()
