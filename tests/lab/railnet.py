"""Rails of lab nodes that a network back-end of the node's own configures, as a tune run tells it to."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import namespaces
from .errors import LabError
from .hardware import TESTS
from .host import Host
from .lab import Lab, Node
from .shell import call

SLICES = ("rail_network", "sysctls")
_UNITS = {"networkd": "systemd-networkd", "netplan": "systemd-networkd", "networkmanager": "NetworkManager"}
# With /sys as it is in a container: no udev runs here, and either would wait for it for ever.
_WITHOUT_UDEV = "[Service]\nReadOnlyPaths=/sys\n"
# netplan means a device by the address that its maker gave it, and a veth device has had no maker.
_NETPLAN = """#!/bin/sh
/usr/sbin/netplan "$@" || exit $?
[ "$1" = generate ] || exit 0
root=
[ "$2" = --root-dir ] && root=$3
[ -d "$root/run/systemd/network" ] || exit 0
find "$root/run/systemd/network" -name '*.network' -exec sed -i s/^PermanentMACAddress/MACAddress/ {} +
"""
# The node's own programs, in their own folder, and what the tune role has its module do.
HOME = "/opt/railwright"
_DRIVER = f"""
import json, sys
sys.path.insert(0, {HOME!r})
from pathlib import Path
from railwright.node import state
from railwright.node.discover import discover
from railwright.node.model import Policy, to_json
from railwright.plan import plan
asked = json.load(sys.stdin)
findings = []
if asked["verb"] == "confirmed":
    state.confirmed()
    outcome = state.Outcome({{}}, (), (), ())
elif asked["verb"] == "revert":
    outcome = state.revert(asked["slices"], owner="lab", check=asked["check"])
else:
    policy = Policy.read(asked["policy"])
    made = plan(discover(Path("/"), sysctls=tuple(policy.sysctls)), policy)
    if made.status != "planned":
        raise SystemExit("; ".join(f"{{each.where}}: {{each.why}}" for each in made.refusals))
    chosen = {{name: to_json(made.slices[name].entries) for name in asked["slices"] if name in made.slices}}
    findings = [each.code for each in made.findings]
    outcome = state.apply(chosen, owner="lab", check=asked["check"])
items = [item.to_json() for part in outcome.slices.values() for item in part]
print(json.dumps({{
    "changed": [item["id"] for item in items if item["changed"]],
    "items": [item["id"] for item in items],
    "failures": [failure.to_json() for failure in outcome.failures],
    "findings": findings,
}}))
"""


@dataclass(frozen=True)
class Ran:
    """What a call of the writer did: identities of items that changed, of all, failures, codes of findings."""

    changed: tuple[str, ...]
    items: tuple[str, ...]
    failures: tuple[Mapping[str, Any], ...]
    findings: tuple[str, ...]


@dataclass(frozen=True)
class Rails:
    """One node's rails: rail number to netdev, in the order of the switches that they hang on."""

    lab: Lab
    node: Node
    netdevs: tuple[str, ...]

    def end(self, rail: int) -> str:
        """The switch's end of the rail's cable."""
        return self.node.end(self.netdevs[rail])

    def address(self, rail: int, flat: bool = False) -> str:
        number = self.node.spec.number
        return f"10.100.0.{10 * number + rail}" if flat else f"10.100.{rail}.{number + 1}"

    def policy(self, backend: str | None = None, flat: bool = False, **rails: Any) -> dict[str, Any]:
        """A policy that gives each rail its address, and says which NIC it is."""
        places = json.loads(
            self.node.must(
                "python3 -c 'import json, os, sys; print(json.dumps({n: os.path.basename(os.path.realpath("
                '"/sys/class/net/" + n + "/device")) for n in sys.argv[1:]}))\' ' + " ".join(self.netdevs)
            )
        )
        return {
            "schema": "railwright.policy/1",
            "nics": [
                {"match": places[netdev], "role": "rail", "rail": rail}
                for rail, netdev in enumerate(self.netdevs)
            ],
            "rails": {
                "mode": "flat" if flat else "subnet",
                "backend": backend,
                "addresses": [
                    {"rail": rail, "address": f"{self.address(rail, flat)}/24"}
                    for rail in range(len(self.netdevs))
                ],
                **rails,
            },
        }

    def run(
        self,
        verb: str,
        policy: Mapping[str, Any] | None = None,
        check: bool = False,
        slices: Sequence[str] = SLICES,
    ) -> Ran:
        """Calls the writer on the node. Raises LabError where it ends badly."""
        asked = {"verb": verb, "policy": policy, "check": check, "slices": list(slices)}
        said = self.node.must(f"python3 {HOME}/drive.py", stdin=json.dumps(asked), timeout=120)
        told = json.loads(said)
        return Ran(**{key: tuple(value) for key, value in told.items()})

    def bare(self) -> None:
        """No manager runs, and the rails have neither an address nor another hardware address than the recorded one."""
        units = " ".join(
            sorted({f"{unit}.service" for unit in _UNITS.values()} | {"systemd-networkd.socket"})
        )
        lines = [
            f"systemctl stop {units} 2>/dev/null; rm -rf /var/lib/railwright /run/systemd/network",
            "rm -f /etc/systemd/network/70-* /etc/netplan/* /etc/NetworkManager/system-connections/*",
            # The kernel's own are marked as such; networkd would take away what only looks like them.
            # A route to nowhere has no device with which it goes.
            "for table in $(seq 100 107); do ip -4 route flush table $table 2>/dev/null; done",
            "for rule in $(ip -4 rule | sed -n 's/^\\(1[0-9]*\\):.*/\\1/p'); do ip -4 rule del priority $rule; done",
            *(
                f"ip link set {netdev} down address $(cat /sys/class/net/{netdev}/address); "
                f"ip addr flush dev {netdev}; ip link set {netdev} up; cd /proc/sys/net/ipv4/conf/{netdev}; "
                "for key in accept_local arp_announce arp_ignore rp_filter; do echo 0 > $key; done"
                for netdev in self.netdevs
            ),
        ]
        self.node.must("; ".join(lines))

    def manage(self, backend: str) -> None:
        """Starts what configures the network, and nothing of it knows the rails yet."""
        unit = _UNITS[backend]
        page = f"/run/systemd/system/{unit}.service.d/lab.conf"
        lines = [f"mkdir -p {Path(page).parent} && printf '{_WITHOUT_UDEV}' > {page}"]
        if backend == "netplan":
            # As an installer leaves it: the front end is there, and nothing of it is ours.
            lines.append("printf 'network: {version: 2}\\n' > /etc/netplan/00-installer.yaml")
            lines.append("chmod 600 /etc/netplan/*")
            self.node.must(
                "cat > /usr/local/sbin/netplan && chmod 755 /usr/local/sbin/netplan", stdin=_NETPLAN
            )
        if backend == "networkmanager":
            lines.append("rm -f /etc/systemd/system/NetworkManager*.service")
            own = f"[main]\\nno-auto-default=*\\n[keyfile]\\nunmanaged-devices=interface-name:{self.front}\\n"
            lines.append(
                f"mkdir -p /etc/NetworkManager/conf.d && printf '{own}' > /etc/NetworkManager/conf.d/lab.conf"
            )
        self.node.must(" && ".join([*lines, f"systemctl daemon-reload && systemctl start {unit}"]))

    @property
    def front(self) -> str:
        return next(port.netdev for port in self.node.ports if port.default)

    def told(self, *argv: str) -> Any:
        """What ip(8) says, as JSON."""
        return json.loads(self.node.must(f"ip -N -j {' '.join(argv)}") or "[]")

    def flaps(self) -> dict[str, int]:
        """How often each rail's carrier changed, as the kernel counts."""
        links = {link.get("ifname"): link for link in self.told("-s", "-s", "link")}
        return {netdev: links[netdev]["stats64"]["tx"]["carrier_changes"] for netdev in self.netdevs}

    def network(self) -> dict[str, Any]:
        """Addresses of the rails, rules and routes, in an order of their own."""
        held = {
            link["ifname"]: sorted(f"{one['local']}/{one['prefixlen']}" for one in link.get("addr_info", []))
            for link in self.told("-4", "addr")
            if link
        }
        routes = [
            {key: way.get(key) for key in ("type", "dst", "gateway", "dev", "table", "prefsrc", "metric")}
            for way in self.told("-4", "route", "show", "table", "all")
        ]
        return {
            "addresses": held,
            "rules": sorted(self.told("-4", "rule"), key=json.dumps),
            "routes": sorted(routes, key=json.dumps),
        }


def rails_of(lab: Lab, node: Node) -> Rails:
    """The rails of a node, which has the programs from now on."""
    switches = {port.switch: port.netdev for port in node.ports if port.switch.startswith("sw100.")}
    push(node)
    node.must(f"cat > {HOME}/drive.py", stdin=_DRIVER)
    return Rails(lab, node, tuple(switches[name] for name in sorted(switches)))


def push(host: Host) -> None:
    """Puts the node's own programs on a host. Raises LabError."""
    packed = io.BytesIO()
    source = TESTS.parent / "src/railwright"
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for part in ("__init__.py", "node", "plan", "presets"):
            archive.add(source / part, f"railwright/{part}", filter=_sources)
    argv = [*host.entry(), "--", f"mkdir -p {HOME} && tar -xzf - -C {HOME}"]
    done = subprocess.run(argv, input=packed.getvalue(), capture_output=True, check=False, timeout=600)
    if done.returncode != 0:
        raise LabError(
            host.name, f"tar ended with {done.returncode}: {done.stderr.decode()}", "see what it said"
        )


def _sources(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in member.name else member


class Counters:
    """Counts pings where they enter the fabric: at the switch's end of each cable."""

    def __init__(self, lab: Lab, ends: Mapping[int, str]) -> None:
        self._pid = lab.fabric.pid
        self._ends = ends
        rules = "".join(
            f'        iifname "{end}" ip protocol icmp icmp type echo-request counter name rail{rail}\n'
            for rail, end in ends.items()
        )
        counters = "".join(f"    counter rail{rail} {{ }}\n" for rail in ends)
        self._nft(
            f"table bridge pings {{\n{counters}    chain entered {{\n"
            f"        type filter hook prerouting priority -200; policy accept;\n{rules}    }}\n}}\n"
        )

    def read(self) -> dict[int, int]:
        """Echo requests that came in on each rail since the last reading."""
        page = json.loads(
            call(namespaces.within(self._pid, "nft", "-j", "reset", "counters", "table", "bridge", "pings"))
        )
        found = {
            one["counter"]["name"]: one["counter"]["packets"] for one in page["nftables"] if "counter" in one
        }
        return {rail: found[f"rail{rail}"] for rail in self._ends}

    def close(self) -> None:
        self._nft("delete table bridge pings\n")

    def _nft(self, rules: str) -> None:
        call(namespaces.within(self._pid, "nft", "-f", "-"), stdin=rules)
