// SPDX-License-Identifier: GPL-2.0-only
/* What ethtool shows and sets. Limits and defaults are those of mlx5. */
#include <linux/ethtool.h>
#include <linux/linkmode.h>
#include <linux/log2.h>
#include "lab_nic.h"

#define MOST_USECS 4095
#define MOST_FRAMES 65535

void lab_ethtool_reset(struct lab_nic *nic)
{
	nic->rx_ring = 1024;
	nic->tx_ring = 1024;
	nic->rx_pause = true;
	nic->tx_pause = true;
	nic->rx_cqe = true;
	nic->coalesce.rx_coalesce_usecs = 8;
	nic->coalesce.rx_max_coalesced_frames = 128;
	nic->coalesce.tx_coalesce_usecs = 8;
	nic->coalesce.tx_max_coalesced_frames = 128;
	nic->coalesce.use_adaptive_rx_coalesce = 1;
	nic->coalesce.use_adaptive_tx_coalesce = 1;
}

static void get_driver(struct net_device *net, struct ethtool_drvinfo *info)
{
	struct lab_nic *nic = netdev_priv(net);

	strscpy(info->driver, nic->pci->driver->name, sizeof(info->driver));
	strscpy(info->fw_version, "28.39.1002 (MT_0000000838)", sizeof(info->fw_version));
	strscpy(info->bus_info, pci_name(nic->pci), sizeof(info->bus_info));
}

static void get_pause(struct net_device *net, struct ethtool_pauseparam *pause)
{
	struct lab_nic *nic = netdev_priv(net);

	pause->autoneg = 0;
	pause->rx_pause = nic->rx_pause;
	pause->tx_pause = nic->tx_pause;
}

/* Pause for the whole link and for single priorities exclude each other. */
static int set_pause(struct net_device *net, struct ethtool_pauseparam *pause)
{
	struct lab_nic *nic = netdev_priv(net);

	if (nic->is_virtual)
		return -EOPNOTSUPP;
	if (pause->autoneg)
		return -EINVAL;
	if (nic->dcb.pfc && (pause->rx_pause || pause->tx_pause))
		return -EINVAL;
	nic->rx_pause = pause->rx_pause;
	nic->tx_pause = pause->tx_pause;
	return 0;
}

static void get_rings(struct net_device *net, struct ethtool_ringparam *rings,
		      struct kernel_ethtool_ringparam *more, struct netlink_ext_ack *extack)
{
	struct lab_nic *nic = netdev_priv(net);

	rings->rx_max_pending = LAB_MOST_RING;
	rings->tx_max_pending = LAB_MOST_RING;
	rings->rx_pending = nic->rx_ring;
	rings->tx_pending = nic->tx_ring;
}

/* New rings mean new channels, and those new vectors. */
static int set_rings(struct net_device *net, struct ethtool_ringparam *rings,
		     struct kernel_ethtool_ringparam *more, struct netlink_ext_ack *extack)
{
	struct lab_nic *nic = netdev_priv(net);
	u32 rx = roundup_pow_of_two(rings->rx_pending), tx = roundup_pow_of_two(rings->tx_pending);

	if (rings->rx_pending < LAB_LEAST_RING || rings->tx_pending < LAB_LEAST_RING) {
		NL_SET_ERR_MSG_FMT_MOD(extack, "a ring has at least %d entries", LAB_LEAST_RING);
		return -EINVAL;
	}
	if (rx == nic->rx_ring && tx == nic->tx_ring)
		return 0;
	nic->rx_ring = rx;
	nic->tx_ring = tx;
	return lab_channels_change(nic, nic->wanted_channels);
}

static void get_channels(struct net_device *net, struct ethtool_channels *channels)
{
	struct lab_nic *nic = netdev_priv(net);

	channels->max_combined = nic->most_channels;
	channels->combined_count = nic->wanted_channels;
}

static int set_channels(struct net_device *net, struct ethtool_channels *channels)
{
	struct lab_nic *nic = netdev_priv(net);

	if (!channels->combined_count)
		return -EINVAL;
	if (channels->combined_count == nic->wanted_channels)
		return 0;
	return lab_channels_change(nic, channels->combined_count);
}

static int get_coalesce(struct net_device *net, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *more, struct netlink_ext_ack *extack)
{
	struct lab_nic *nic = netdev_priv(net);

	*coalesce = nic->coalesce;
	more->use_cqe_mode_rx = nic->rx_cqe;
	more->use_cqe_mode_tx = nic->tx_cqe;
	return 0;
}

static int set_coalesce(struct net_device *net, struct ethtool_coalesce *coalesce,
			struct kernel_ethtool_coalesce *more, struct netlink_ext_ack *extack)
{
	struct lab_nic *nic = netdev_priv(net);

	if (coalesce->rx_coalesce_usecs > MOST_USECS || coalesce->tx_coalesce_usecs > MOST_USECS ||
	    coalesce->rx_max_coalesced_frames > MOST_FRAMES || coalesce->tx_max_coalesced_frames > MOST_FRAMES)
		return -ERANGE;
	nic->coalesce = *coalesce;
	nic->rx_cqe = more->use_cqe_mode_rx;
	nic->tx_cqe = more->use_cqe_mode_tx;
	return 0;
}

static int get_link(struct net_device *net, struct ethtool_link_ksettings *link)
{
	bool up = netif_carrier_ok(net);

	ethtool_link_ksettings_zero_link_mode(link, supported);
	ethtool_link_ksettings_add_link_mode(link, supported, FIBRE);
	ethtool_link_ksettings_add_link_mode(link, supported, Autoneg);
	ethtool_link_ksettings_add_link_mode(link, supported, Pause);
	ethtool_link_ksettings_add_link_mode(link, supported, 100000baseCR4_Full);
	ethtool_link_ksettings_add_link_mode(link, supported, 200000baseCR4_Full);
	ethtool_link_ksettings_add_link_mode(link, supported, 400000baseCR4_Full);
	linkmode_copy(link->link_modes.advertising, link->link_modes.supported);
	link->base.port = PORT_DA;
	link->base.autoneg = AUTONEG_ENABLE;
	link->base.speed = up ? lab_speed : SPEED_UNKNOWN;
	link->base.duplex = up ? DUPLEX_FULL : DUPLEX_UNKNOWN;
	link->lanes = up ? 4 : 0;
	return 0;
}

/* Counters with mlx5's names; those of a priority come eight times. */
static const char * const port_counters[] = {
	"link_down_events_phy", "rx_oversize_pkts_phy", "rx_out_of_buffer", "rx_discards_phy", "tx_discards_phy",
	"rx_pause_ctrl_phy", "tx_pause_ctrl_phy",
};
static const char * const priority_counters[] = {
	"rx_prio%d_bytes", "rx_prio%d_packets", "rx_prio%d_discards", "tx_prio%d_bytes", "tx_prio%d_packets",
};
/* These exist only for priorities with PFC. */
static const char * const pause_counters[] = {
	"rx_prio%d_pause", "rx_prio%d_pause_duration", "tx_prio%d_pause", "tx_prio%d_pause_duration",
};

static int number_of_counters(struct net_device *net, int set)
{
	struct lab_nic *nic = netdev_priv(net);

	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return ARRAY_SIZE(port_counters) + LAB_PRIORITIES * ARRAY_SIZE(priority_counters) +
	       hweight8(nic->dcb.pfc) * ARRAY_SIZE(pause_counters);
}

static void name_counters(struct net_device *net, u32 set, u8 *text)
{
	struct lab_nic *nic = netdev_priv(net);
	int i, priority;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < ARRAY_SIZE(port_counters); i++)
		ethtool_puts(&text, port_counters[i]);
	for (priority = 0; priority < LAB_PRIORITIES; priority++)
		for (i = 0; i < ARRAY_SIZE(priority_counters); i++)
			ethtool_sprintf(&text, priority_counters[i], priority);
	for (priority = 0; priority < LAB_PRIORITIES; priority++)
		for (i = 0; i < ARRAY_SIZE(pause_counters) && nic->dcb.pfc & BIT(priority); i++)
			ethtool_sprintf(&text, pause_counters[i], priority);
}

/* Nothing is ever congested here, so no frame is paused or discarded. */
static void read_counters(struct net_device *net, struct ethtool_stats *stats, u64 *values)
{
	struct lab_nic *nic = netdev_priv(net);
	int priority;

	memset(values, 0, number_of_counters(net, ETH_SS_STATS) * sizeof(*values));
	values[0] = atomic64_read(&nic->link_downs);
	values[1] = atomic64_read(&nic->oversized);
	values[2] = atomic64_read(&nic->no_buffer);
	values += ARRAY_SIZE(port_counters);
	for (priority = 0; priority < LAB_PRIORITIES; priority++) {
		struct lab_priority *counts = &nic->priority[priority];

		values[0] = atomic64_read(&counts->rx_bytes);
		values[1] = atomic64_read(&counts->rx_packets);
		values[3] = atomic64_read(&counts->tx_bytes);
		values[4] = atomic64_read(&counts->tx_packets);
		values += ARRAY_SIZE(priority_counters);
	}
}

const struct ethtool_ops lab_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_USECS | ETHTOOL_COALESCE_MAX_FRAMES |
				     ETHTOOL_COALESCE_USE_ADAPTIVE | ETHTOOL_COALESCE_USE_CQE,
	.get_drvinfo = get_driver,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = get_link,
	.get_pauseparam = get_pause,
	.set_pauseparam = set_pause,
	.get_ringparam = get_rings,
	.set_ringparam = set_rings,
	.get_channels = get_channels,
	.set_channels = set_channels,
	.get_coalesce = get_coalesce,
	.set_coalesce = set_coalesce,
	.get_sset_count = number_of_counters,
	.get_strings = name_counters,
	.get_ethtool_stats = read_counters,
};
