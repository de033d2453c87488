"""The units that put a node's plan back: at every boot, and whenever a device or its queues come back.

Three units and a rule:

* `railwright.service` runs at boot, before what runs work and never before sshd; its wait for devices is bounded.
* udev touches `asked` for a NIC that comes (a driver that was loaded again, a card that was reset) and for a receive
  queue that comes (`ethtool -L`). A path unit sees the file and starts `railwright-again.service`, once more as often
  as it is touched: a path unit looks again when the service ends, so no event falls between two runs.
* Each run that finds the node as planned leaves `good`, and takes it away first; units that the policy gates start only
  where it lies.
"""

from __future__ import annotations

from typing import Optional

from ..node.model import Policy, Slice
from .entries import HEADER, file, unit
from .policy_bytes import canonical

BOOT_UNIT = "railwright.service"
AGAIN_UNIT = "railwright-again.service"
PATH_UNIT = "railwright-again.path"
ZIPAPP = "/usr/local/lib/railwright/railwright.pyz"
POLICY_FILE = "/etc/railwright/policy.json"
RULES_FILE = "/etc/udev/rules.d/95-railwright.rules"
# A folder that the boot unit owns: before it is there nobody has to be told of a device.
FOLDER = "/run/railwright"
ASKED, GOOD = f"{FOLDER}/asked", f"{FOLDER}/good"
# Devices wait 60 s, another run's lock 30 s; what then hangs is ended, and the boot goes on without it.
LONGEST_SECONDS = 120
# A driver that comes back brings some sixty queues a NIC, within this time and in one run.
SETTLE_SECONDS = 3
_UNITS = "/etc/systemd/system"


def slice_of(policy: Policy) -> Optional[Slice]:
    """The boot unit's slice: program, policy, units and rule; None where the policy states no program."""
    boot = policy.boot
    if boot is None or not boot.sha256:
        return None
    files = {
        f"{_UNITS}/{BOOT_UNIT}": _BOOT,
        f"{_UNITS}/{AGAIN_UNIT}": _AGAIN,
        f"{_UNITS}/{PATH_UNIT}": _PATH,
        RULES_FILE: _RULES,
        **{f"{_UNITS}/{unit}.d/60-railwright.conf": _GATE for unit in boot.gate},
    }
    watched = [ZIPAPP, POLICY_FILE, f"{_UNITS}/{BOOT_UNIT}"]
    return Slice(
        "runtime",
        (
            {"kind": "file", "path": ZIPAPP, "sha256": boot.sha256, "mode": "0644"},
            file(POLICY_FILE, canonical(policy)),
            *(file(path, text) for path, text in files.items()),
            # Before the boot unit, whose run ends with a check of all of these.
            unit(PATH_UNIT, [f"{_UNITS}/{PATH_UNIT}"]),
            unit(BOOT_UNIT, watched),
        ),
        "interrupts and the like are forgotten at every boot, by every driver that is loaded again and by every change "
        "of a NIC's channels; these units plan again from the policy and put them back",
    )


_RUN = f"""ExecStart=/usr/bin/python3 {ZIPAPP} boot
ExecStartPost=/usr/bin/touch {GOOD}
TimeoutStartSec={LONGEST_SECONDS}
"""

# It is ordered before what runs work, never before sshd, and it ends: a node that cannot be tuned must stay reachable.
_BOOT = f"""{HEADER}[Unit]
Description=Railwright: put this node's plan back
Documentation=file:{POLICY_FILE}
After=local-fs.target systemd-modules-load.service systemd-udev-settle.service openibd.service network.target
Before=slurmd.service kubelet.service docker.service containerd.service
ConditionPathExists={POLICY_FILE}

[Service]
Type=oneshot
RemainAfterExit=yes
RuntimeDirectory=railwright
RuntimeDirectoryPreserve=yes
ExecStartPre=/usr/bin/rm -f {GOOD} {ASKED}
{_RUN}
[Install]
WantedBy=multi-user.target
"""

# Without a limit of starts: every start is asked for, takes a few seconds, and must not be lost. And without a
# condition: a unit that does not start would leave the file that the path unit waits for.
_AGAIN = f"""{HEADER}[Unit]
Description=Railwright: put this node's plan back after a device or its queues came back
Documentation=file:{POLICY_FILE}
After={BOOT_UNIT}
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStartPre=/usr/bin/sleep {SETTLE_SECONDS}
ExecStartPre=/usr/bin/rm -f {GOOD} {ASKED}
{_RUN}"""

_PATH = f"""{HEADER}[Unit]
Description=Railwright: wait for devices and queues that come back
Documentation=file:{POLICY_FILE}

[Path]
PathExists={ASKED}
Unit={AGAIN_UNIT}

[Install]
WantedBy=multi-user.target
"""

# Virtual functions are a tenant's: they come and go with pods. The PCI function is asked, by the event's own words: the
# folder of a queue has another name by then, for its netdev was renamed. In a rule "$$" is "$" and "%%" is "%". Queues
# that go leave the interrupts of the others where they are. TEST starts nothing.


def _touch(folder: str) -> str:
    return f"/bin/sh -c 'test -e /sys$${{DEVPATH%%/{folder}/*}}/physfn || touch {ASKED}'"


_RULES = f"""{HEADER}ACTION!="add", GOTO="railwright_end"
TEST!="{FOLDER}", GOTO="railwright_end"
SUBSYSTEM=="infiniband", SUBSYSTEMS=="pci", RUN+="{_touch("infiniband")}"
SUBSYSTEM=="net", SUBSYSTEMS=="pci", RUN+="{_touch("net")}"
SUBSYSTEM=="queues", KERNEL=="rx-*", SUBSYSTEMS=="pci", RUN+="{_touch("net")}"
LABEL="railwright_end"
"""

_GATE = f"""{HEADER}[Unit]
After={BOOT_UNIT}
AssertPathExists={GOOD}
"""
