/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef LAB_NIC_H
#define LAB_NIC_H

#include <linux/ethtool.h>
#include <linux/interrupt.h>
#include <linux/msi.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/skbuff.h>
#include <net/dcbnl.h>

#define LAB_PRIORITIES 8
#define LAB_CODE_POINTS 64
/* Vector 0 is the asynchronous one. */
#define LAB_MOST_CHANNELS 32
/* As ConnectX: an MTU of 9978 bytes, rings of up to 8192. */
#define LAB_MOST_MTU 9978
#define LAB_LEAST_RING 64
#define LAB_MOST_RING 8192

struct lab_nic;

/* A vector that is told to another CPU: see lab_vector_follow. */
struct lab_vector {
	struct lab_nic *nic;
	struct msi_map map;
	struct irq_affinity_notify notify;
};

struct lab_channel {
	struct lab_nic *nic;
	struct napi_struct napi;
	struct sk_buff_head queue;
	struct lab_vector vector;
	struct irq_affinity_desc spread;	/* the kernel keeps a pointer to it */
	unsigned long rung;
	char name[48];
};

struct lab_priority {
	atomic64_t tx_packets, tx_bytes;
	atomic64_t rx_packets, rx_bytes;
};

/* What a bind of the driver starts anew: see lab_dcb_reset. */
struct lab_dcb {
	u8 pfc;			/* a bit a priority */
	u16 cable;		/* metres */
	u8 priority_tc[LAB_PRIORITIES];
	u8 tc_algorithm[LAB_PRIORITIES];
	u8 tc_share[LAB_PRIORITIES];
	u64 tc_rate[LAB_PRIORITIES];
	struct dcbnl_buffer buffer;
	bool buffer_by_hand;
	u8 dscp_priority[LAB_CODE_POINTS];
	int code_points;	/* APP entries; with none, priorities are trusted */
	u8 mode;
};

#define LAB_CONGESTION 20

struct lab_parameter {
	u32 value;
	u32 most;
};

/* The private part of the net_device. */
struct lab_nic {
	struct net_device *net;
	struct pci_dev *pci;
	void __iomem *registers;
	struct list_head on_rails;
	int number;		/* mlx5_N */
	int rail;
	bool is_virtual;

	struct lab_vector async;
	struct lab_channel *channels;
	int open_channels;	/* 0 while closed */
	unsigned int most_channels;
	unsigned int wanted_channels;
	u32 rx_ring, tx_ring;
	struct ethtool_coalesce coalesce;
	bool rx_cqe, tx_cqe;
	bool rx_pause, tx_pause;
	struct lab_dcb dcb;

	bool plugged;		/* as /sys/class/net/X/carrier was told */
	struct delayed_work link_up;
	atomic64_t link_downs, oversized, no_buffer;
	struct lab_priority priority[LAB_PRIORITIES];

	struct dentry *debugfs;
	struct lab_parameter congestion[LAB_CONGESTION];
};

/* lab_nic_main.c */
void lab_bell_start(struct lab_nic *nic);
void lab_bell_ring(struct lab_nic *nic, int vector);
void lab_vector_follow(struct lab_nic *nic, struct lab_vector *vector);
void lab_vector_leave(struct lab_vector *vector);
uint lab_flap_ms(void);

/* lab_nic_net.c */
extern const struct net_device_ops lab_net_ops;
int lab_channels_change(struct lab_nic *nic, unsigned int channels);
void lab_link_flap(struct lab_nic *nic);
void lab_link_up(struct work_struct *work);
void lab_rails_join(struct lab_nic *nic);
void lab_rails_leave(struct lab_nic *nic);
struct lab_nic *lab_nic_of(struct net_device *net);

/* lab_nic_ethtool.c */
extern const struct ethtool_ops lab_ethtool_ops;
void lab_ethtool_reset(struct lab_nic *nic);
extern uint lab_speed;

/* lab_nic_dcb.c */
extern const struct dcbnl_rtnl_ops lab_dcb_ops;
void lab_dcb_reset(struct lab_nic *nic, bool by_host);
int lab_priority_of(const struct lab_nic *nic, struct sk_buff *skb);

/* lab_nic_congestion.c */
void lab_congestion_open(void);
void lab_congestion_close(void);
void lab_congestion_add(struct lab_nic *nic);
void lab_congestion_remove(struct lab_nic *nic);

/* lab_nic_rdma.c */
int lab_rdma_open(void);
void lab_rdma_close(void);
void lab_rdma_drop(struct lab_nic *nic);

#endif
