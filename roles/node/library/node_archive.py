#!/usr/bin/python
"""An archive of built packages on a node, by digest: all thinking is in railwright.node.builder.archive."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_archive
short_description: Ask for an archive of built packages, or keep one
version_added: "0.2.0"
description:
  - Tells whether the archive of this digest lies on the node as it was made, or takes files that were brought there and
    keeps them under its digest, whole or not at all.
options:
  sha256:
    description: Of the archive's manifest.
    type: str
    required: true
  system:
    description: The package system that it is for, C(dpkg) or C(rpm).
    type: str
    required: true
  files:
    description: Where the files lie now, by name. Without them the node is only asked.
    type: dict
attributes:
  check_mode:
    description: Without files it only reads; with files it is not called.
    support: full
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
- name: Ask for the archive
  node_archive:
    sha256: "{{ built.sha256 }}"
    system: dpkg
"""

RETURN = r"""
ansible_facts:
  description: The answer, under C(archive).
  returned: success
  type: dict
  contains:
    archive:
      description: Whether it is there, whole.
      type: dict
"""

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.builder.archive import keep, whole
from ansible.module_utils.railwright.node.model import InputError
from ansible.module_utils.railwright.node.state.outcome import Refused


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "sha256": {"type": "str", "required": True},
            "system": {"type": "str", "required": True},
            "files": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    asked = module.params
    try:
        there = whole(asked["sha256"], asked["system"])
        if not there and asked["files"] and not module.check_mode:
            keep(asked["sha256"], asked["files"])
            module.exit_json(changed=True, ansible_facts={"archive": {"whole": True}})
    except InputError as error:
        module.fail_json(msg=str(error), where=error.where, why=error.why, remedy=error.remedy)
    except Refused as error:
        module.fail_json(
            msg=f"{error.why} ({error.remedy})", where="archive", why=error.why, remedy=error.remedy
        )
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}", where=str(error.filename), why=str(error))
    module.exit_json(changed=False, ansible_facts={"archive": {"whole": there}})


if __name__ == "__main__":
    main()
