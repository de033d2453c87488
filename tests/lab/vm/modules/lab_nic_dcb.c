// SPDX-License-Identifier: GPL-2.0-only
/*
 * Data center bridging, with the manners of mlx5 that a program has to know: PFC flaps the link when it changes and is
 * refused while the whole link is paused; `delay` is a cable's length; trust follows from DSCP entries; all of it starts
 * anew with a bind.
 */
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include "lab_nic.h"

#define DEFAULT_CABLE 7
#define LONGEST_CABLE 1000
/* A receive buffer is counted in cells. */
#define CELL 144
#define TOTAL_BUFFER (7137 * CELL)
#define LOSSLESS_BUFFER 1
/* A class with no share of ETS reports the whole link. */
#define WHOLE 100
/* Rates are kept in steps of 100 Mb/s, above 25.5 Gb/s of 1 Gb/s; kb/s here, as dcbnl has it. */
#define SMALL_STEP 100000
#define LARGE_STEP 1000000
#define SMALL_STEPS_END 26000000

static const u32 default_buffers[DCBX_MAX_BUFFERS] = { 139 * CELL, 1084 * CELL };

void lab_dcb_reset(struct lab_nic *nic, bool by_host)
{
	struct lab_dcb *dcb = &nic->dcb;
	int i;

	memset(dcb, 0, sizeof(*dcb));
	dcb->cable = DEFAULT_CABLE;
	for (i = 0; i < LAB_PRIORITIES; i++) {
		dcb->priority_tc[i] = i;
		dcb->tc_algorithm[i] = IEEE_8021QAZ_TSA_VENDOR;
		dcb->tc_share[i] = WHOLE;
	}
	/* Best effort above background, as 802.1Q orders them. */
	dcb->priority_tc[0] = 1;
	dcb->priority_tc[1] = 0;
	memcpy(dcb->buffer.buffer_size, default_buffers, sizeof(default_buffers));
	dcb->buffer.total_size = TOTAL_BUFFER;
	dcb->mode = DCB_CAP_DCBX_VER_CEE | DCB_CAP_DCBX_VER_IEEE | (by_host ? DCB_CAP_DCBX_HOST : 0);
}

static int dscp_of(struct sk_buff *skb)
{
	int at = skb_network_offset(skb);
	union {
		struct iphdr v4;
		struct ipv6hdr v6;
	} header, *found;

	switch (vlan_get_protocol(skb)) {
	case htons(ETH_P_IP):
		found = skb_header_pointer(skb, at, sizeof(header.v4), &header);
		return found ? found->v4.tos >> 2 : -1;
	case htons(ETH_P_IPV6):
		found = skb_header_pointer(skb, at, sizeof(header.v6), &header);
		return found ? (found->v6.priority << 4 | found->v6.flow_lbl[0] >> 4) >> 2 : -1;
	}
	return -1;
}

/* By DSCP where that is trusted and there is one, else by VLAN tag, else 0. */
int lab_priority_of(const struct lab_nic *nic, struct sk_buff *skb)
{
	int dscp = READ_ONCE(nic->dcb.code_points) ? dscp_of(skb) : -1;
	u16 tag;

	if (dscp >= 0)
		return nic->dcb.dscp_priority[dscp];
	if (!vlan_get_tag(skb, &tag))
		return (tag & VLAN_PRIO_MASK) >> VLAN_PRIO_SHIFT;
	return 0;
}

static int get_pfc(struct net_device *net, struct ieee_pfc *pfc)
{
	struct lab_nic *nic = netdev_priv(net);

	pfc->pfc_cap = LAB_PRIORITIES;
	pfc->pfc_en = nic->dcb.pfc;
	pfc->delay = nic->dcb.cable;
	return 0;
}

/* Without buffers set by hand, priorities with PFC go to the buffer with headroom. */
static void assign_buffers(struct lab_dcb *dcb)
{
	int i;

	for (i = 0; i < LAB_PRIORITIES && !dcb->buffer_by_hand; i++)
		dcb->buffer.prio2buffer[i] = dcb->pfc & BIT(i) ? LOSSLESS_BUFFER : 0;
}

static int set_pfc(struct net_device *net, struct ieee_pfc *pfc)
{
	struct lab_nic *nic = netdev_priv(net);

	if (pfc->pfc_en && (nic->rx_pause || nic->tx_pause))
		return -EINVAL;
	if (pfc->pfc_en != nic->dcb.pfc) {
		nic->dcb.pfc = pfc->pfc_en;
		assign_buffers(&nic->dcb);
		lab_link_flap(nic);
	}
	if (pfc->delay && pfc->delay < LONGEST_CABLE)
		nic->dcb.cable = pfc->delay;
	return 0;
}

static int get_ets(struct net_device *net, struct ieee_ets *ets)
{
	struct lab_dcb *dcb = &((struct lab_nic *)netdev_priv(net))->dcb;

	ets->ets_cap = LAB_PRIORITIES;
	memcpy(ets->prio_tc, dcb->priority_tc, sizeof(ets->prio_tc));
	memcpy(ets->tc_tsa, dcb->tc_algorithm, sizeof(ets->tc_tsa));
	memcpy(ets->tc_tx_bw, dcb->tc_share, sizeof(ets->tc_tx_bw));
	return 0;
}

static int check_ets(const struct ieee_ets *ets)
{
	int i, sum = 0;
	bool shared = false;

	for (i = 0; i < LAB_PRIORITIES; i++) {
		if (ets->prio_tc[i] >= LAB_PRIORITIES)
			return -EINVAL;
		switch (ets->tc_tsa[i]) {
		case IEEE_8021QAZ_TSA_STRICT:
		case IEEE_8021QAZ_TSA_VENDOR:
			break;
		case IEEE_8021QAZ_TSA_ETS:
			shared = true;
			sum += ets->tc_tx_bw[i];
			break;
		default:
			return -EOPNOTSUPP;
		}
	}
	return shared && sum != WHOLE ? -EINVAL : 0;
}

static int set_ets(struct net_device *net, struct ieee_ets *ets)
{
	struct lab_dcb *dcb = &((struct lab_nic *)netdev_priv(net))->dcb;
	int i, failed = check_ets(ets);

	if (failed)
		return failed;
	memcpy(dcb->priority_tc, ets->prio_tc, sizeof(dcb->priority_tc));
	memcpy(dcb->tc_algorithm, ets->tc_tsa, sizeof(dcb->tc_algorithm));
	for (i = 0; i < LAB_PRIORITIES; i++)
		dcb->tc_share[i] = ets->tc_tsa[i] == IEEE_8021QAZ_TSA_ETS ? ets->tc_tx_bw[i] : WHOLE;
	return 0;
}

static int get_rates(struct net_device *net, struct ieee_maxrate *rates)
{
	struct lab_nic *nic = netdev_priv(net);

	memcpy(rates->tc_maxrate, nic->dcb.tc_rate, sizeof(rates->tc_maxrate));
	return 0;
}

static int set_rates(struct net_device *net, struct ieee_maxrate *rates)
{
	struct lab_nic *nic = netdev_priv(net);
	int i;

	for (i = 0; i < LAB_PRIORITIES; i++) {
		u64 step = rates->tc_maxrate[i] < SMALL_STEPS_END ? SMALL_STEP : LARGE_STEP;

		nic->dcb.tc_rate[i] = rates->tc_maxrate[i] ? max(div64_u64(rates->tc_maxrate[i], step), 1ULL) * step : 0;
	}
	return 0;
}

static int get_buffer(struct net_device *net, struct dcbnl_buffer *buffer)
{
	struct lab_nic *nic = netdev_priv(net);

	*buffer = nic->dcb.buffer;
	return 0;
}

static int set_buffer(struct net_device *net, struct dcbnl_buffer *buffer)
{
	struct lab_dcb *dcb = &((struct lab_nic *)netdev_priv(net))->dcb;
	u64 sum = 0;
	int i;

	for (i = 0; i < LAB_PRIORITIES; i++)
		if (buffer->prio2buffer[i] >= DCBX_MAX_BUFFERS)
			return -EINVAL;
	for (i = 0; i < DCBX_MAX_BUFFERS; i++)
		sum += buffer->buffer_size[i];
	if (sum > TOTAL_BUFFER)
		return -EINVAL;
	memcpy(dcb->buffer.prio2buffer, buffer->prio2buffer, sizeof(dcb->buffer.prio2buffer));
	for (i = 0; i < DCBX_MAX_BUFFERS; i++)
		dcb->buffer.buffer_size[i] = buffer->buffer_size[i] / CELL * CELL;
	dcb->buffer_by_hand = true;
	return 0;
}

static bool is_dscp(const struct dcb_app *app)
{
	return app->selector == IEEE_8021QAZ_APP_SEL_DSCP && app->protocol < LAB_CODE_POINTS;
}

/* One priority a code point: a new one takes the place of the old. */
static int set_app(struct net_device *net, struct dcb_app *app)
{
	struct lab_dcb *dcb = &((struct lab_nic *)netdev_priv(net))->dcb;
	struct dcb_app old = { .selector = IEEE_8021QAZ_APP_SEL_DSCP, .protocol = app->protocol };
	bool is_new;
	int failed;

	if (!is_dscp(app) || app->priority >= LAB_PRIORITIES)
		return -EINVAL;
	old.priority = dcb->dscp_priority[app->protocol];
	is_new = dcb_ieee_delapp(net, &old);
	failed = dcb_ieee_setapp(net, app);
	if (failed)
		return failed;
	dcb->dscp_priority[app->protocol] = app->priority;
	WRITE_ONCE(dcb->code_points, dcb->code_points + is_new);
	return 0;
}

static int delete_app(struct net_device *net, struct dcb_app *app)
{
	struct lab_dcb *dcb = &((struct lab_nic *)netdev_priv(net))->dcb;
	int failed;

	if (!is_dscp(app))
		return -EINVAL;
	if (!dcb->code_points || dcb->dscp_priority[app->protocol] != app->priority)
		return -ENOENT;
	failed = dcb_ieee_delapp(net, app);
	if (failed)
		return failed;
	dcb->dscp_priority[app->protocol] = 0;
	WRITE_ONCE(dcb->code_points, dcb->code_points - 1);
	return 0;
}

static u8 get_mode(struct net_device *net)
{
	return ((struct lab_nic *)netdev_priv(net))->dcb.mode;
}

/* 0 gives DCBX to the firmware, else the host takes it; 1 is dcbnl's refusal. */
static u8 set_mode(struct net_device *net, u8 mode)
{
	struct lab_dcb *dcb = &((struct lab_nic *)netdev_priv(net))->dcb;

	if (mode & DCB_CAP_DCBX_LLD_MANAGED)
		return 1;
	if (!mode) {
		dcb->mode &= ~DCB_CAP_DCBX_HOST;
		return 0;
	}
	if (!(mode & DCB_CAP_DCBX_HOST))
		return 1;
	dcb->mode = mode;
	return 0;
}

const struct dcbnl_rtnl_ops lab_dcb_ops = {
	.ieee_getpfc = get_pfc,
	.ieee_setpfc = set_pfc,
	.ieee_getets = get_ets,
	.ieee_setets = set_ets,
	.ieee_getmaxrate = get_rates,
	.ieee_setmaxrate = set_rates,
	.ieee_setapp = set_app,
	.ieee_delapp = delete_app,
	.dcbnl_getbuffer = get_buffer,
	.dcbnl_setbuffer = set_buffer,
	.getdcbx = get_mode,
	.setdcbx = set_mode,
};
