"""Facts with pseudonyms: every text of them by what it is, and what this table does not know by the forms of text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..node.discover import SYSCTLS
from ..node.model import Facts, to_json
from .cmdline import redact_cmdline
from .text import TextRedactor
from .tools import redact_output

# What the kernel, the firmware or a vendor says of a kind of thing, never of one machine.
_KEPT_WORDS = """
    schema witnesses.kind host.virtual host.driver host.modules.name cpus.arch cpus.vendor cpus.model_name
    cpus.online cpus.offline cpus.isolated cpus.allowed numa.cpus roots.name pci.address pci.parent
    pci.vendor pci.device pci.subsystem_vendor pci.subsystem_device pci.class_code pci.port pci.local_cpus
    pci.acs.capability pci.acs.control pci.driver gpus.name gpus.address gpus.model gpus.cpus
    gpus.nvlinks.target nics.address nics.link_layer nics.state nics.physical_function nics.gids.kind
    network.masters.kind network.infiniband.pkeys network.infiniband.physical
    managers.running managers.ports.device managers.ports.path managers.crowded
    pcie.lockdown pcie.functions.address pcie.functions.iommu pcie_errors.address
    qos.device qos.backend qos.trust qos.ets.tc_tsa qos.dcbx qos.roce_mode
    irqs.device irqs.affinity irqs.effective units.name units.load units.active units.enabled
"""
_KEPT = frozenset(_KEPT_WORDS.split())
_DISTRIBUTIONS_WORDS = """
    almalinux amzn azurelinux centos debian fedora mariner ol opensuse-leap rhel rocky sle_hpc sles ubuntu
"""
_DISTRIBUTIONS = frozenset(_DISTRIBUTIONS_WORDS.split())
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){0,2}", re.ASCII)
# What sysctls hold: a few numbers, or the word of one of these keys.
_NUMBERS = re.compile(r"-?\d{1,20}(?: -?\d{1,20}){0,15}", re.ASCII)
_WORD = re.compile(r"[a-z_]{1,16}", re.ASCII)
_WORD_SYSCTLS = frozenset({"net.core.default_qdisc", "net.ipv4.tcp_congestion_control"})


def redact_facts(facts: Facts, redactor: TextRedactor, root: str) -> Facts:
    """The facts with pseudonyms. root: the folder that they were read from, which becomes "/" where they name it.

    Raises InputError where two devices would get one name.
    """
    return Facts.read(_Redaction(redactor, root).walk(to_json(facts), ""), "the redacted facts")


class _Redaction:
    def __init__(self, redactor: TextRedactor, root: str) -> None:
        pseudonyms = redactor.pseudonyms
        self._redactor = redactor
        self._root = root.rstrip("/")
        self._rules: Mapping[str, Callable[[Any], Any]] = {
            "witnesses.source": lambda source: "/",
            "host.name": pseudonyms.name,
            "host.os_id": lambda text: text if text in _DISTRIBUTIONS else self._text(text),
            "host.os_version": lambda text: text if _VERSION.fullmatch(text) else self._text(text),
            "host.cmdline": lambda text: redact_cmdline(text, redactor),
            "host.boot_id": pseudonyms.uuid,
            "host.sysctls": self._sysctls,
            "nics.mac": pseudonyms.mac,
            "nics.guid": pseudonyms.guid,
            "nics.sys_image_guid": pseudonyms.guid,
            "nics.addresses": self._address,
            "network.addresses.address": self._address,
            "nics.gids.gid": pseudonyms.address,
            "tools": self._tool,
            **dict.fromkeys(_KEPT, str),
        }

    def walk(self, value: Any, path: str) -> Any:
        if isinstance(value, list):
            return [self.walk(item, path) for item in value]
        if path in self._rules and value is not None:
            return self._rules[path](value)
        if isinstance(value, dict):
            return {key: self.walk(item, f"{path}.{key}".lstrip(".")) for key, item in value.items()}
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        # A note names files below the root that was given: where that lies is nobody's business.
        return self._redactor.text(text.replace(f"{self._root}/", "/") if self._root else text)

    def _address(self, text: str) -> str:
        address, slash, length = text.partition("/")
        return self._redactor.pseudonyms.address(address) + slash + length

    def _sysctls(self, sysctls: dict[str, str]) -> dict[str, str]:
        # A key that is not of our own list may name an interface.
        return {
            key if key in SYSCTLS else self._text(key): value
            if _NUMBERS.fullmatch(value) or (key in _WORD_SYSCTLS and _WORD.fullmatch(value))
            else self._redactor.pseudonyms.value(value)
            for key, value in sysctls.items()
        }

    def _tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        output = redact_output(tool["name"], tool["output"], self._redactor)
        return {
            "name": self._text(tool["name"]),
            "argv": [self._text(word) for word in tool["argv"]],
            "code": tool["code"],
            "output": output,
        }
