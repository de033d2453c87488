"""The kernel command line: what is known to say how a kernel works stays, the value of everything else goes."""

from __future__ import annotations

import re

from .text import TextRedactor

# Words after which a kernel behaves differently towards GPUs, NICs, CPUs and memory, and what a console is. No value of
# theirs is a name, an address or a secret (Documentation/admin-guide/kernel-parameters.txt).
_KEPT_WORDS = """
    acpi acpi_enforce_resources acs_override amd_iommu amd_iommu_dump amd_pstate apparmor audit biosdevname
    cgroup_disable cgroup_enable cgroup_no_v1 clocksource cma console cpuidle.off crashkernel debug
    default_hugepagesz disable_ipv6 earlyprintk efi enforcing fips hpet hugepages hugepagesz
    hugetlb_free_vmemmap idle init_on_alloc init_on_free initcall_blacklist intel_idle.max_cstate
    intel_iommu intel_pstate ima_appraise iommu iommu.forcedac iommu.passthrough iommu.strict irqaffinity
    isolcpus kvm_amd.nested kvm_intel.nested l1tf lockdown log_buf_len loglevel mce mds mem_encrypt
    memhp_default_state mitigations modprobe.blacklist module.sig_enforce module_blacklist movablecore
    net.ifnames nmi_watchdog no_timer_check nohz nohz_full nokaslr nomodeset nopti noresume nosmp nosmt
    nosoftlockup nospectre_v2 notsc nouveau.blacklist nouveau.modeset nowatchdog numa numa_balancing panic
    pci pci_aspm pcie_aspm pcie_aspm.policy pcie_acs_override pcie_bus_perf pcie_ports printk.devkmsg
    processor.ignore_ppc processor.max_cstate psi pti quiet rcu_nocb_poll rcu_nocbs
    rcupdate.rcu_normal_after_boot rcutree.kthread_prio rd.driver.blacklist rdblacklist ro rw security
    selinux skew_tick spectre_v2 splash swapaccount swiotlb systemd.show_status
    systemd.unified_cgroup_hierarchy threadirqs transparent_hugepage tsc tsx vfio-pci.ids
    vfio_iommu_type1.allow_unsafe_interrupts vga workqueue.power_efficient x2apic_phys
"""
KEPT = frozenset(_KEPT_WORDS.split())
# A word of the line; double quotes keep blanks in one (lib/cmdline.c, next_arg).
_WORD = re.compile(r'(?:"[^"]*(?:"|$)|[^\s"])+')
_PLAIN = re.compile(r"[A-Za-z0-9_.,:@/+*^~=;%\[\]-]{0,200}", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_IDENTIFIER = re.compile(r"[0-9a-f]{12,}|(?:[0-9a-f]{2}[:-]){5}|(?:\d{1,3}\.){3}\d", re.IGNORECASE)


def redact_cmdline(line: str, redactor: TextRedactor) -> str:
    """The line with its words in order; between two stands one blank."""
    return " ".join(_word(word, redactor) for word in _WORD.findall(line))


def _word(word: str, redactor: TextRedactor) -> str:
    key, equals, value = word.partition("=")
    # The kernel takes - and _ in a name for the same.
    known = key in KEPT or key.replace("-", "_") in KEPT
    if known and _PLAIN.fullmatch(value) and not _IDENTIFIER.search(value):
        return word
    if equals and _PARAMETER.fullmatch(key):
        return f"{redactor.text(key)}={redactor.pseudonyms.value(value)}"
    return redactor.pseudonyms.value(word)
