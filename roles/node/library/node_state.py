#!/usr/bin/python
"""The one module that changes a node: all thinking is in railwright.node.state."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: node_state
short_description: Bring a node to its slices, or put back what was there before
version_added: "0.1.0"
description:
  - Converges a list of typed items in one call, under one lock on the node and with one record of what was there
    before (C(/var/lib/railwright/state.json)).
  - A slice is what one role owns. What an earlier run wrote for a named slice and is not among its entries any more is
    put back. Slices that are not named are left alone.
  - A run of several calls begins with O(state=held) and ends with O(state=released). Between them the node answers no
    other run, which is told who holds it, since when and until when. When the hold ends otherwise, the later calls of
    that run are refused, since another run may have written meanwhile.
  - Everything is looked at before anything is written. An item that cannot be set does not stop the others; the task
    then fails and names them all.
options:
  state:
    description:
      - With C(applied), the node is brought to O(slices), or to O(entries) of O(slice).
      - With C(reverted), what was there before the slices in O(names) is put back, as far as nobody changed it since.
      - With C(held), the node is held for O(run) until C(released), or until O(seconds) have gone by since the run's
        last call.
      - With C(confirmed), a change of the node's network stands, since this call has reached the node after it. Every
        other call that is no check says so too; without any the node undoes the change after its C(confirm_seconds).
    type: str
    choices: [applied, reverted, held, released, confirmed]
    default: applied
  slices:
    description: Entries by slice. See O(entries) for the form of an entry.
    type: dict
  slice:
    description: The name of one slice, for a role that sets only its own.
    type: str
  entries:
    description:
      - The entries of O(slice). Each has C(kind) and may have C(because) (why it is there) and C(reboot) (it takes
        effect at the next boot). C(file) and C(json_keys) may be C(secret), and their content is never shown.
      - C(file) has C(path), C(content) or C(sha256), C(mode) (C("0644")), C(owner) and C(group) (C(root)).
      - C(json_keys) has C(path) and C(keys), a mapping of JSON pointer to value. A new file has the mode C(0644), or
        C(0600) when it is C(secret).
      - C(sysctl) has C(name) and C(value), C(sysfs) has C(path) and C(value); values are text.
      - C(irq_affinity) has C(device), C(cpus) and C(control_cpus).
      - C(network) has C(backend), C(mode), C(files), C(confirm_seconds) and C(ports), as the planner makes them. It
        tells the back-end of files that changed, and waits until the rails have what they say.
      - C(sysfs_each) has C(path), a pattern, and C(value).
      - C(package_index) has C(system) (C(dpkg) or C(rpm)) and C(sources), files whose index is read again when one of
        them or of C(inputs) is newer. It goes into an earlier call than the packages.
      - C(packages) has C(system), C(versions) (null is "must not be there"), C(hold), C(recommends), C(may_change),
        C(sources) and C(wait). One transaction, simulated first; what nobody named and would move is refused.
      - C(initramfs) has C(inputs), files that go into it; C(boot_arguments) has C(arguments). Both, and C(packages),
        have the C(name) of the slice that asks.
      - C(systemd_unit) has C(name), C(enabled), C(state) (C(started), C(stopped) or null) and C(restart_if_older_than).
    type: list
    elements: dict
  blobs:
    description: Bytes of files that are named by their C(sha256), as a mapping of digest to base64.
    type: dict
  names:
    description: The slices to put back. Without it all of them are, but for those in O(but).
    type: list
    elements: str
  but:
    description: Slices that are left as they stand where O(state=reverted) names none.
    type: list
    elements: str
  owner:
    description: A label of this controller, shown to another run that finds the node locked. Ansible fills it in.
    type: str
    default: ""
  run:
    description: The run that this call is a part of, up to 64 letters, digits and marks. Ansible fills it in.
    type: str
    default: ""
  seconds:
    description:
      - How long the node is held after the run's last call, whatever has become of the run. Each call of it begins the
        time anew.
      - More than a task may take on the slowest node of a play (C(task_timeout)), for which the others wait.
    type: int
    default: 900
  look:
    description: Read the node afterwards, as M(node_facts) does with these options. Not where an item failed.
    type: dict
    suboptions:
      watch:
        description: As of M(node_facts).
        type: list
        elements: path
        default: []
      units:
        description: As of M(node_facts).
        type: list
        elements: str
        default: []
      sysctls:
        description: As of M(node_facts).
        type: list
        elements: str
        default: []
      packages:
        description: As of M(node_facts).
        type: list
        elements: str
        default: []
      tools:
        description: As of M(node_facts).
        type: bool
        default: false
attributes:
  check_mode:
    description: Says what would change and changes nothing, not even the lock file. Nothing is held.
    support: full
  diff_mode:
    description: Shows files and values before and after; never the content of a secret or a binary file.
    support: full
  platform:
    description: Where it works.
    support: full
    platforms: linux
author:
  - Railwright
"""

EXAMPLES = r"""
- name: Write NCCL's configuration
  node_state:
    slice: nccl_conf
    entries:
      - kind: file
        path: /etc/nccl.conf
        content: |
          NCCL_IB_HCA==mlx5_0,mlx5_1
        because: the rails of this node

- name: Bring the node to all slices of its plan
  node_state:
    slices:
      sysctls:
        - kind: sysctl
          name: vm.zone_reclaim_mode
          value: "0"
      irq_affinity:
        - kind: irq_affinity
          device: "0000:18:00.0"
          cpus: "4,6,8"
          control_cpus: "2"
    owner: rack-7

- name: Hold the node for this run
  node_state:
    state: held

- name: Let the node go
  node_state:
    state: released

- name: Put back what was there before the interrupts were placed
  node_state:
    state: reverted
    names: [irq_affinity]
"""

RETURN = r"""
slices:
  description: What was done with each item, by slice.
  returned: when the input could be used
  type: dict
  sample:
    nccl_conf:
      changed: true
      items:
        - id: file:/etc/nccl.conf
          kind: file
          changed: true
          action: create
          before: null
          after: "0644 0:0, 27 bytes, sha256 98752ee28d54"
          note: ""
failures:
  description: The items that could not be set, each with C(where), C(why) and C(remedy).
  returned: when the input could be used
  type: list
  elements: dict
  sample: []
reboot_needed:
  description:
    - The items that take effect at the next boot and stand otherwise than at the last one.
    - All of this node, also those that an earlier call changed or put back.
  returned: when the input could be used
  type: list
  elements: str
  sample: []
ansible_facts:
  description: The node as it is afterwards, under C(node), as M(node_facts) returns it.
  returned: with O(look), when no item failed
  type: dict
where:
  description: The place of the input, or the thing on the node, because of which nothing was done.
  returned: when nothing was done
  type: str
  sample: slices.nccl_conf[0].mode
why:
  description: What is wrong there.
  returned: when nothing was done
  type: str
  sample: "'644' is no file mode"
remedy:
  description: What to do about it.
  returned: when nothing was done
  type: str
  sample: expected a form like "0644"
"""

from pathlib import Path
from typing import Any, Optional

from ansible.module_utils.railwright.node import bytecode

bytecode.use()

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.railwright.node.state import (
    InputError,
    Outcome,
    StateError,
    apply,
    confirmed,
    hold,
    release,
    revert,
)

OPTIONS: dict[str, dict[str, Any]] = {
    "state": {
        "type": "str",
        "choices": ["applied", "reverted", "held", "released", "confirmed"],
        "default": "applied",
    },
    "slices": {"type": "dict"},
    "slice": {"type": "str"},
    "entries": {"type": "list", "elements": "dict"},
    # QuietModule shows no parameter's content; no_log would also star out what looks like a blob in every message.
    "blobs": {"type": "dict", "no_log": False},
    "names": {"type": "list", "elements": "str"},
    "but": {"type": "list", "elements": "str"},
    "owner": {"type": "str", "default": ""},
    "run": {"type": "str", "default": ""},
    "seconds": {"type": "int", "default": 900},
    "look": {
        "type": "dict",
        "options": {
            "watch": {"type": "list", "elements": "path", "default": []},
            "units": {"type": "list", "elements": "str", "default": []},
            "sysctls": {"type": "list", "elements": "str", "default": []},
            "packages": {"type": "list", "elements": "str", "default": []},
            "tools": {"type": "bool", "default": False},
        },
    },
}
SHORTEST_SECRET = 6


class QuietModule(AnsibleModule):  # type: ignore[misc]  # ansible-core ships no types
    """An AnsibleModule that names the slices, in the node's log and in its result, and never repeats their content."""

    def exit_json(self, **result: Any) -> None:
        super().exit_json(**result, invocation=self._invocation())

    def fail_json(self, msg: str, **result: Any) -> None:
        super().fail_json(msg, **result, invocation=self._invocation())

    def _log_invocation(self) -> None:
        names = ", ".join(_slice_names(self.params)) or (
            "(all)" if self.params["state"] == "reverted" else "(none)"
        )
        self.log(f"Invoked for slices {names}: {self.params['state']}")

    def _invocation(self) -> dict[str, Any]:
        shown = {name: self.params.get(name) for name in ("state", "owner")}
        return {"module_args": {**shown, "slices": _slice_names(self.params)}}


def main() -> None:
    module = QuietModule(
        argument_spec=OPTIONS,
        mutually_exclusive=[("slices", "slice"), ("slices", "entries")],
        required_together=[("slice", "entries")],
        supports_check_mode=True,
    )
    _refuse_mixture(module)
    module.no_log_values.update(_secrets(module.params))
    try:
        outcome = _run(module)
    except (InputError, StateError) as error:
        module.fail_json(str(error), where=error.where, why=error.why, remedy=error.remedy, changed=False)
    result = outcome.to_json()
    if not module._diff:
        del result["diff"]
    if outcome.failures:
        module.fail_json(_summary(outcome), **result)
    try:
        seen = _seen(module.params["look"])
    except InputError as error:
        module.fail_json(str(error), where=error.where, why=error.why, remedy=error.remedy, **result)
    except OSError as error:
        module.fail_json(f"{error.filename}: {error.strerror}", **result)
    _bytecode(module)
    module.exit_json(**result, **seen)


def _bytecode(module: AnsibleModule) -> None:
    """Kept for the calls to come; a whole revert leaves nothing of ours."""
    params = module.params
    if module.check_mode:
        return
    if params["state"] in {"applied", "held"}:
        bytecode.keep()
    elif params["state"] == "reverted" and params["names"] is None:
        bytecode.forget()


def _run(module: AnsibleModule) -> Outcome:
    params = module.params
    who = {"check": module.check_mode, "owner": params["owner"]}
    if params["state"] == "held":
        hold(params["run"], seconds=params["seconds"], **who)
        return Outcome({}, (), (), ())
    if params["state"] == "released":
        release(params["run"], check=module.check_mode)
        return Outcome({}, (), (), ())
    if params["state"] == "confirmed":
        confirmed(check=module.check_mode)
        return Outcome({}, (), (), ())
    if params["state"] == "reverted":
        return revert(params["names"], but=params["but"] or (), run=params["run"], **who)
    slices = params["slices"] if params["slice"] is None else {params["slice"]: params["entries"]}
    return apply(slices, blobs=params["blobs"], run=params["run"], **who)


def _seen(look: Optional[dict[str, Any]]) -> dict[str, Any]:
    """The node as it is now, where that is asked for. Raises InputError and OSError."""
    if look is None:
        return {}
    # Loaded for whom it serves: most calls only write.
    from ansible.module_utils.railwright.node.discover import discover
    from ansible.module_utils.railwright.node.model import to_json

    return {"ansible_facts": {"node": to_json(discover(Path("/"), **look))}}


def _refuse_mixture(module: AnsibleModule) -> None:
    """What an argument spec cannot say: which options go with which state."""
    params = module.params
    if params["state"] != "applied":
        taken = ("names", "but") if params["state"] == "reverted" else ()
        given = ("slices", "slice", "blobs", "look", "names", "but")
        idle = [name for name in given if params[name] is not None and name not in taken]
        if idle:
            module.fail_json(
                f"state={params['state']} takes {taken[0] if taken else 'run'}, not {', '.join(idle)}"
            )
    elif params["names"] is not None or params["but"] is not None:
        module.fail_json(
            msg="names and but go with state=reverted; state=applied takes slices, or slice and entries"
        )
    elif params["slices"] is None and params["slice"] is None:
        module.fail_json("state=applied needs slices, or slice and entries")


def _slice_names(params: dict[str, Any]) -> list[str]:
    if params.get("slice") is not None:
        return [str(params["slice"])]
    named = params.get("slices") or params.get("names")
    return sorted(map(str, named)) if isinstance(named, (dict, list)) else []


def _secrets(params: dict[str, Any]) -> set[str]:
    """The texts of secret entries: Ansible takes them out of everything that this module returns."""
    entries = list(params["entries"] or ())
    for listed in (params["slices"] or {}).values():
        entries += listed if isinstance(listed, list) else []
    secret = [entry for entry in entries if isinstance(entry, dict) and entry.get("secret") is True]
    found = {text for entry in secret for key in ("content", "keys") for text in _texts(entry.get(key))}
    # Nothing of ours shows them anyway; a short one would take every other word apart.
    return {text for text in found if len(text) >= SHORTEST_SECRET}


def _texts(value: Any) -> set[str]:
    if isinstance(value, dict):
        return set().union(*map(_texts, value.values()))
    if isinstance(value, list):
        return set().union(*map(_texts, value))
    return {value} if isinstance(value, str) else set()


def _summary(outcome: Outcome) -> str:
    items = sum(len(items) for items in outcome.slices.values())
    failed = "; ".join(
        f"{failure.where}: {failure.why}" + (f" ({failure.remedy})" if failure.remedy else "")
        for failure in outcome.failures
    )
    return f"{len(outcome.failures)} of {items} items failed: {failed}"


if __name__ == "__main__":
    main()
