"""Where a driver keeps what steers RoCE's congestion control, DCQCN, of one port.

The driver of DOCA-OFED has files below /sys/class/net/IF/ecn, with a switch for each priority; the kernel's own has
/sys/kernel/debug/mlx5/BDF/cc_params, without one (torvalds/linux drivers/infiniband/hw/mlx5/cong.c). Which of them is
there only a look tells.
"""

from __future__ import annotations

import re
from typing import Optional

# Names here are those of the kernel's own driver; what DOCA-OFED calls them, below IF/ecn.
_RP, _NP = "roce_rp", "roce_np"
SYSFS = {
    "np_cnp_dscp": f"{_NP}/cnp_dscp",
    "np_cnp_prio": f"{_NP}/cnp_802p_prio",
    "np_min_time_between_cnps": f"{_NP}/min_time_between_cnps",
    "rp_ai_rate": f"{_RP}/rpg_ai_rate",
    "rp_byte_reset": f"{_RP}/rpg_byte_reset",
    "rp_clamp_tgt_rate": f"{_RP}/clamp_tgt_rate",
    "rp_clamp_tgt_rate_ati": f"{_RP}/clamp_tgt_rate_after_time_inc",
    "rp_dce_tcp_g": f"{_RP}/dce_tcp_g",
    "rp_dce_tcp_rtt": f"{_RP}/dce_tcp_rtt",
    "rp_gd": f"{_RP}/rpg_gd",
    "rp_hai_rate": f"{_RP}/rpg_hai_rate",
    "rp_initial_alpha_value": f"{_RP}/initial_alpha_value",
    "rp_max_rate": f"{_RP}/rpg_max_rate",
    "rp_min_dec_fac": f"{_RP}/rpg_min_dec_fac",
    "rp_min_rate": f"{_RP}/rpg_min_rate",
    "rp_rate_reduce_monitor_period": f"{_RP}/rate_reduce_monitor_period",
    "rp_rate_to_set_on_first_cnp": f"{_RP}/rate_to_set_on_first_cnp",
    "rp_threshold": f"{_RP}/rpg_threshold",
    "rp_time_reset": f"{_RP}/rpg_time_reset",
    **{f"np_enable_{prio}": f"{_NP}/enable/{prio}" for prio in range(8)},
    **{f"rp_enable_{prio}": f"{_RP}/enable/{prio}" for prio in range(8)},
}
_SWITCHES = ("np_enable_", "rp_enable_")


def places(name: str, netdev: str, device: str) -> tuple[str, ...]:
    """The files that may hold this value, the one of DOCA-OFED first."""
    vendor = f"/sys/class/net/{netdev}/ecn/{SYSFS[name]}"
    if name.startswith(_SWITCHES):
        return (vendor,)
    return (vendor, f"/sys/kernel/debug/mlx5/{device}/cc_params/{name}")


# What DOCA-OFED has and the kernel's own driver has not: the class of all QPs and the field that is trusted.
def traffic_class_file(rdma: str, port: int = 1) -> str:
    return f"/sys/class/infiniband/{rdma}/tc/{port}/traffic_class"


# No class for all queue pairs, which is how the driver starts: the file is empty then (MLNX_OFED mlx5_ib main_ext.c,
# traffic_class_show and _store).
NO_CLASS = -1
_GLOBAL = re.compile(r"^(?:Global tclass=)?(-1|[0-9]{1,3})$", re.ASCII | re.MULTILINE)
_RULE = re.compile(r"[a-z]\w*=\S", re.ASCII)


def class_of(text: str) -> Optional[int]:
    """The class of all queue pairs by its file, NO_CLASS where nobody has set one; None for what no driver writes.

    Rules for single addresses stand in lines of their own and are nobody's business here.
    """
    found = _GLOBAL.search(text)
    if found is not None:
        return int(found[1])
    return NO_CLASS if not text.strip() or _RULE.match(text) else None


def trust_file(netdev: str) -> str:
    return f"/sys/class/net/{netdev}/qos/trust"


# RDMA-CM's defaults of a device: a folder that somebody has to make (Documentation/ABI/testing/configfs-rdma_cm).
CONFIGFS = "/sys/kernel/config/rdma_cm"


def cma_folder(rdma: str) -> str:
    return f"{CONFIGFS}/{rdma}"


def cma_file(rdma: str, name: str, port: int = 1) -> str:
    return f"{cma_folder(rdma)}/ports/{port}/{name}"
