// SPDX-License-Identifier: GPL-2.0-only
/* The network device: channels with a vector each, a switch a rail between them, and the link. */
#include <linux/etherdevice.h>
#include <linux/if_vlan.h>
#include <linux/rculist.h>
#include "lab_nic.h"

/* All NICs that can hear: read under RCU, changed under the mutex. */
static LIST_HEAD(on_rails);
static DEFINE_MUTEX(rails_lock);

void lab_rails_join(struct lab_nic *nic)
{
	mutex_lock(&rails_lock);
	list_add_tail_rcu(&nic->on_rails, &on_rails);
	mutex_unlock(&rails_lock);
}

void lab_rails_leave(struct lab_nic *nic)
{
	mutex_lock(&rails_lock);
	list_del_rcu(&nic->on_rails);
	mutex_unlock(&rails_lock);
	synchronize_net();
}

static irqreturn_t channel_interrupt(int irq, void *data)
{
	struct lab_channel *channel = data;

	napi_schedule_irqoff(&channel->napi);
	return IRQ_HANDLED;
}

static int channel_poll(struct napi_struct *napi, int budget)
{
	struct lab_channel *channel = container_of(napi, struct lab_channel, napi);
	struct net_device *net = channel->nic->net;
	struct sk_buff *skb;
	int done = 0;

	/* From here on a sender rings again, so nothing that is queued below goes unnoticed. */
	clear_bit(0, &channel->rung);
	smp_mb__after_atomic();
	while (done < budget) {
		skb = skb_dequeue(&channel->queue);
		if (!skb)
			break;
		dev_sw_netstats_rx_add(net, skb->len);
		skb->protocol = eth_type_trans(skb, net);
		skb_record_rx_queue(skb, channel - channel->nic->channels);
		napi_gro_receive(napi, skb);
		done++;
	}
	if (done < budget)
		napi_complete_done(napi, done);
	return done;
}

/* True where it was taken. */
static bool hear(struct lab_nic *nic, struct sk_buff *skb)
{
	int channels = smp_load_acquire(&nic->open_channels);
	struct lab_priority *priority = &nic->priority[lab_priority_of(nic, skb)];
	struct lab_channel *channel;

	/* Closed since it was asked; its channels stay until this reader is through. */
	if (!channels)
		return false;
	if (skb->len > READ_ONCE(nic->net->mtu) + ETH_HLEN + VLAN_HLEN) {
		atomic64_inc(&nic->oversized);
		return false;
	}
	channel = &nic->channels[reciprocal_scale(skb_get_hash(skb), channels)];
	if (skb_queue_len(&channel->queue) >= READ_ONCE(nic->rx_ring)) {
		atomic64_inc(&nic->no_buffer);
		return false;
	}
	atomic64_inc(&priority->rx_packets);
	atomic64_add(skb->len, &priority->rx_bytes);
	skb_queue_tail(&channel->queue, skb);
	if (!test_and_set_bit(0, &channel->rung))
		lab_bell_ring(nic, channel->vector.map.index);
	return true;
}

static bool hears(const struct lab_nic *nic, const struct lab_nic *from, const u8 *to)
{
	if (nic == from || READ_ONCE(nic->rail) != READ_ONCE(from->rail))
		return false;
	if (!READ_ONCE(nic->open_channels) || !netif_carrier_ok(nic->net))
		return false;
	return is_multicast_ether_addr(to) || ether_addr_equal(to, nic->net->dev_addr) ||
	       nic->net->flags & IFF_PROMISC;
}

static netdev_tx_t lab_xmit(struct sk_buff *skb, struct net_device *net)
{
	struct lab_nic *from = netdev_priv(net), *nic;
	struct lab_priority *priority = &from->priority[lab_priority_of(from, skb)];
	const u8 *to;

	skb_reset_mac_header(skb);
	to = eth_hdr(skb)->h_dest;
	atomic64_inc(&priority->tx_packets);
	atomic64_add(skb->len, &priority->tx_bytes);
	dev_sw_netstats_tx_add(net, 1, skb->len);
	skb_tx_timestamp(skb);
	rcu_read_lock();
	list_for_each_entry_rcu(nic, &on_rails, on_rails) {
		struct sk_buff *copy;

		if (!hears(nic, from, to))
			continue;
		/* A copy of its own: what comes off a wire shares nothing with its sender. */
		copy = skb_copy(skb, GFP_ATOMIC);
		if (!copy)
			continue;
		skb_orphan(copy);
		skb_scrub_packet(copy, true);
		if (!hear(nic, copy))
			kfree_skb(copy);
	}
	rcu_read_unlock();
	dev_consume_skb_any(skb);
	return NETDEV_TX_OK;
}

static int channel_open(struct lab_nic *nic, int index)
{
	struct lab_channel *channel = &nic->channels[index];
	int failed;

	channel->nic = nic;
	skb_queue_head_init(&channel->queue);
	cpumask_set_cpu(cpumask_local_spread(index, dev_to_node(&nic->pci->dev)), &channel->spread.mask);
	channel->vector.map = pci_msix_alloc_irq_at(nic->pci, MSI_ANY_INDEX, &channel->spread);
	if (channel->vector.map.index < 0)
		return channel->vector.map.index;
	snprintf(channel->name, sizeof(channel->name), "mlx5_comp%d@pci:%s", index, pci_name(nic->pci));
	netif_napi_add(nic->net, &channel->napi, channel_poll);
	failed = request_irq(channel->vector.map.virq, channel_interrupt, 0, channel->name, channel);
	if (failed) {
		netif_napi_del(&channel->napi);
		pci_msix_free_irq(nic->pci, channel->vector.map);
		return failed;
	}
	irq_set_affinity_and_hint(channel->vector.map.virq, &channel->spread.mask);
	napi_enable(&channel->napi);
	lab_vector_follow(nic, &channel->vector);
	return 0;
}

static void channel_close(struct lab_channel *channel)
{
	lab_vector_leave(&channel->vector);
	irq_update_affinity_hint(channel->vector.map.virq, NULL);
	free_irq(channel->vector.map.virq, channel);
	napi_disable(&channel->napi);
	netif_napi_del(&channel->napi);
	pci_msix_free_irq(channel->nic->pci, channel->vector.map);
	skb_queue_purge(&channel->queue);
}

static void channels_close(struct lab_nic *nic)
{
	int i, channels = nic->open_channels;

	WRITE_ONCE(nic->open_channels, 0);
	synchronize_net();
	for (i = 0; i < channels; i++)
		channel_close(&nic->channels[i]);
	kfree(nic->channels);
	nic->channels = NULL;
}

static int channels_open(struct lab_nic *nic)
{
	unsigned int i, channels = nic->wanted_channels;
	int failed;

	nic->channels = kcalloc(channels, sizeof(*nic->channels), GFP_KERNEL);
	if (!nic->channels)
		return -ENOMEM;
	failed = netif_set_real_num_queues(nic->net, channels, channels);
	for (i = 0; i < channels && !failed; i++)
		failed = channel_open(nic, i);
	if (failed) {
		while (i-- > 1)
			channel_close(&nic->channels[i - 1]);
		kfree(nic->channels);
		nic->channels = NULL;
		return failed;
	}
	smp_store_release(&nic->open_channels, channels);
	return 0;
}

/* Under RTNL. Where the new number cannot be had the old one is opened again. */
int lab_channels_change(struct lab_nic *nic, unsigned int channels)
{
	unsigned int before = nic->wanted_channels;
	int failed;

	nic->wanted_channels = channels;
	if (!netif_running(nic->net))
		return netif_set_real_num_queues(nic->net, channels, channels);
	netif_tx_disable(nic->net);
	channels_close(nic);
	failed = channels_open(nic);
	if (failed) {
		nic->wanted_channels = before;
		if (channels_open(nic))
			netdev_err(nic->net, "no channels: set the interface down and up\n");
	}
	netif_tx_wake_all_queues(nic->net);
	return failed;
}

static int lab_open(struct net_device *net)
{
	int failed = channels_open(netdev_priv(net));

	if (!failed)
		netif_tx_start_all_queues(net);
	return failed;
}

static int lab_stop(struct net_device *net)
{
	netif_tx_disable(net);
	channels_close(netdev_priv(net));
	return 0;
}

void lab_link_up(struct work_struct *work)
{
	struct lab_nic *nic = container_of(to_delayed_work(work), struct lab_nic, link_up);

	if (nic->plugged)
		netif_carrier_on(nic->net);
}

/* As mlx5 toggles its port: down now, up by itself after a while. Under RTNL. */
void lab_link_flap(struct lab_nic *nic)
{
	if (netif_carrier_ok(nic->net))
		atomic64_inc(&nic->link_downs);
	netif_carrier_off(nic->net);
	mod_delayed_work(system_wq, &nic->link_up, msecs_to_jiffies(lab_flap_ms()));
}

static int lab_change_carrier(struct net_device *net, bool carrier)
{
	struct lab_nic *nic = netdev_priv(net);

	nic->plugged = carrier;
	if (carrier) {
		mod_delayed_work(system_wq, &nic->link_up, 0);
		return 0;
	}
	if (netif_carrier_ok(net))
		atomic64_inc(&nic->link_downs);
	netif_carrier_off(net);
	return 0;
}

/* Accepted and ignored: each NIC takes all multicast, and promiscuous ones everything. */
static void lab_set_rx_mode(struct net_device *net)
{
}

const struct net_device_ops lab_net_ops = {
	.ndo_open = lab_open,
	.ndo_stop = lab_stop,
	.ndo_start_xmit = lab_xmit,
	.ndo_set_mac_address = eth_mac_addr,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_rx_mode = lab_set_rx_mode,
	.ndo_change_carrier = lab_change_carrier,
	.ndo_get_stats64 = dev_get_tstats64,
};

/* NULL where the device is not one of this driver's. */
struct lab_nic *lab_nic_of(struct net_device *net)
{
	return net && net->netdev_ops == &lab_net_ops ? netdev_priv(net) : NULL;
}
