"""Bandwidths that NCCL assumes, so that a plan and NCCL judge the same machine alike.

Rates inside the planner are whole Mb/s where 1 GB/s is 8000 Mb/s, as NCCL converts NIC speeds (speed / 8000): every
capacity is then an integer and no comparison depends on rounding.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Optional, Union

from ..node.model import Cpus

MBPS_PER_GBYTE = 8000

# NCCL 2.30.7 src/graph/topo.cc:545-556, in units of 100 Mb/s a lane: usable rate, coding and headers taken off.
_LANE_100MBPS = {2.5: 15, 5.0: 30, 8.0: 60, 16.0: 120, 32.0: 240, 64.0: 480}
# The same table's fallback for a text that it does not know (8 GT/s), and topo.cc:654 for a width of 0.
_LANE_DEFAULT = 60
_WIDTH_DEFAULT = 16

# topo.cc: a NIC that states no speed is taken for 10 Gb/s.
NIC_DEFAULT_MBPS = 10_000

# 800 Gb/s is the fastest port sold; a NIC that states ten times that has a driver that states nonsense.
NIC_CREDIBLE_MBPS = 8_000_000

# NCCL 2.30.7 src/graph/topo.h:17: LOC_BW, "no limit" in all practical cases.
LOCAL_GBYTES = 5000

# topo.h, GB/s between two NUMA nodes.
_AMD, _POWER9, _ARM = 16, 32, 6
_ZHAOXIN, _YONGFENG = 6, 9
_BROADWELL, _SKYLAKE, _SAPPHIRE_RAPIDS, _EMERALD_RAPIDS = 6, 10, 22, 40

# topo.h:18-24 and ncclTopoNVLinkBw: GB/s of one NVLink from this compute capability up, in tenths to stay integral.
_NVLINK_TENTHS = ((100, 401), (90, 206), (70, 200), (60, 180))
_NVLINK_SM86_TENTHS = 120


def gbytes(mbps: Union[int, Fraction]) -> float:
    """GB/s (10^9 bytes) of a rate in the planner's Mb/s."""
    return float(Fraction(mbps) / MBPS_PER_GBYTE)


def pcie_mbps(speed: Optional[float], width: Optional[int]) -> int:
    """Rate of a PCIe link as NCCL reads it: GT/s and lanes; what is not known counts as 8 GT/s and 16 lanes."""
    lane = _LANE_DEFAULT if speed is None else _LANE_100MBPS.get(speed, _LANE_DEFAULT)
    return (width or _WIDTH_DEFAULT) * lane * 100


def cpu_link_mbps(cpus: Cpus) -> Optional[int]:
    """Rate between two NUMA nodes by vendor and model (topo.cc:57-80); None where it has no figure."""
    value = _cpu_link_gbytes(cpus)
    return None if value is None else value * MBPS_PER_GBYTE


def _cpu_link_gbytes(cpus: Cpus) -> Optional[int]:
    arch = (cpus.arch or "").lower()
    if arch in {"ppc64", "ppc64le"}:
        return _POWER9
    if arch in {"aarch64", "arm64"}:
        return _ARM
    vendor = (cpus.vendor or "").strip()
    if vendor == "AuthenticAMD":
        return _AMD
    if vendor == "GenuineIntel":
        return _intel(cpus)
    if vendor in {"CentaurHauls", "Shanghai"}:
        return _YONGFENG if cpus.family == 7 and cpus.model == 0x5B else _ZHAOXIN
    return None


def _intel(cpus: Cpus) -> int:
    model = (cpus.model or 0) if cpus.family in (None, 6) else 0
    if model >= 0xCF:
        return _EMERALD_RAPIDS
    if model >= 0x8F:
        return _SAPPHIRE_RAPIDS
    return _SKYLAKE if model >= 0x55 else _BROADWELL


def nvlink_mbps(sm: Optional[int]) -> Optional[int]:
    """Rate of one NVLink of a GPU of this compute capability ("90" is 9.0); None when it is not known."""
    if sm is None or sm < 60:
        return None
    if sm == 86:
        return _NVLINK_SM86_TENTHS * MBPS_PER_GBYTE // 10
    tenths = next(tenths for lowest, tenths in _NVLINK_TENTHS if sm >= lowest)
    return tenths * MBPS_PER_GBYTE // 10
