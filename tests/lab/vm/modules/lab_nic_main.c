// SPDX-License-Identifier: GPL-2.0-only
/*
 * A network driver for the functions that lab_pci names as NICs. It has no wire: what one sends, the others on its rail
 * receive. Its settings and its interrupts are the kernel's real ones. See README.md.
 */
#include <linux/delay.h>
#include <linux/etherdevice.h>
#include <linux/idr.h>
#include <linux/module.h>
#include "lab_nic.h"
#include "lab_pci.h"

static char *driver_name = "mlx5_core";
static char *rail[32];
static int rails;
static uint flap_ms = 300;
static char *dcbx = "firmware";
uint lab_speed = 400000;

module_param(driver_name, charp, 0444);
MODULE_PARM_DESC(driver_name, "name of the PCI driver");
module_param_array(rail, charp, &rails, 0444);
MODULE_PARM_DESC(rail, "which rail a function is on: DDDD:BB:DD.F=N,...; default 0");
module_param_named(speed, lab_speed, uint, 0444);
MODULE_PARM_DESC(speed, "of the link, Mb/s");
module_param(flap_ms, uint, 0644);
MODULE_PARM_DESC(flap_ms, "how long the link is down after PFC was changed");
module_param(dcbx, charp, 0444);
MODULE_PARM_DESC(dcbx, "who owns DCBX after a bind: firmware or host");

static DEFINE_IDA(numbers);
/*
 * Registers of the 82576 (Intel's datasheet 331520, chapter 8) that QEMU's igb has and that this driver needs: a write
 * to EICS raises the vectors named in it.
 */
#define GPIE 0x1514
#define GPIE_VECTORS (BIT(4) | BIT(31))	/* MSI-X, a vector a cause */
#define EICS 0x1520
#define EIMS 0x1524
#define EIAC 0x152c
#define EIAM 0x1530
#define EITR(vector) (0x1680 + 4 * (vector))
#define RAL0 0x5400
#define RAH0 0x5404
#define VECTORS 10
#define VECTOR_BITS (BIT(VECTORS) - 1)
#define VIRTUAL_VECTORS 3
/* The emulated device takes the vectors of its upper functions from the physical one: 4 leave it all of them. */
#define MOST_VIRTUAL 4

void lab_bell_start(struct lab_nic *nic)
{
	int vector;

	if (nic->is_virtual) {
		writel(BIT(VIRTUAL_VECTORS) - 1, nic->registers + EIAC);
		writel(BIT(VIRTUAL_VECTORS) - 1, nic->registers + EIMS);
		return;
	}
	writel(GPIE_VECTORS, nic->registers + GPIE);
	writel(0, nic->registers + EIAM);
	for (vector = 0; vector < VECTORS; vector++)
		writel(0, nic->registers + EITR(vector));
	writel(VECTOR_BITS, nic->registers + EIAC);
	writel(VECTOR_BITS, nic->registers + EIMS);
}

void lab_bell_ring(struct lab_nic *nic, int vector)
{
	writel(BIT(vector), nic->registers + EICS);
}

static void affinity_changed(struct irq_affinity_notify *notify, const cpumask_t *mask)
{
	struct lab_vector *vector = container_of(notify, struct lab_vector, notify);

	/* The first interrupt moves the vector, the second lets go of the old CPU: till then no other move is possible. */
	lab_bell_ring(vector->nic, vector->map.index);
	msleep(10);
	lab_bell_ring(vector->nic, vector->map.index);
}

/* The vector outlives its notifier. */
static void notifier_released(struct kref *kref)
{
}

/*
 * Without interrupt remapping x86 moves a vector when it next fires, and effective_affinity stays behind until then. A
 * quiet NIC would never move: ring at each change.
 */
void lab_vector_follow(struct lab_nic *nic, struct lab_vector *vector)
{
	vector->nic = nic;
	vector->notify.notify = affinity_changed;
	vector->notify.release = notifier_released;
	irq_set_affinity_notifier(vector->map.virq, &vector->notify);
}

void lab_vector_leave(struct lab_vector *vector)
{
	irq_set_affinity_notifier(vector->map.virq, NULL);
}

static irqreturn_t async_interrupt(int irq, void *nic)
{
	return IRQ_HANDLED;
}

static void take_address(struct lab_nic *nic)
{
	u8 address[ETH_ALEN];
	u32 low, high;

	if (!nic->is_virtual) {
		low = readl(nic->registers + RAL0);
		high = readl(nic->registers + RAH0);
		memcpy(address, &low, 4);
		memcpy(address + 4, &high, 2);
		if (is_valid_ether_addr(address)) {
			eth_hw_addr_set(nic->net, address);
			return;
		}
	}
	eth_hw_addr_random(nic->net);
}

/* "0000:23:00.0=1" or "23:00.0=1": the number for a function of this name, or -ENOENT where it is another's. */
static int parse_rail(const char *text, const char *name, int *number)
{
	const char *equals = strchr(text, '=');
	size_t length;

	if (!equals || kstrtoint(equals + 1, 0, number))
		return -EINVAL;
	length = equals - text;
	if (strlen(name) == length && !strncmp(text, name, length))
		return 0;
	if (!strncmp(name, "0000:", 5) && strlen(name) == length + 5 && !strncmp(text, name + 5, length))
		return 0;
	return -ENOENT;
}

static int rail_of(struct pci_dev *dev)
{
	int i, number;

	for (i = 0; i < rails; i++)
		if (!parse_rail(rail[i], pci_name(dev), &number))
			return number;
	return 0;
}

static int check_parameters(void)
{
	int i, number;

	if (strcmp(dcbx, "firmware") && strcmp(dcbx, "host")) {
		pr_err("lab_nic: dcbx=%s: expected firmware or host\n", dcbx);
		return -EINVAL;
	}
	for (i = 0; i < rails; i++) {
		if (parse_rail(rail[i], "", &number) == -EINVAL) {
			pr_err("lab_nic: rail=%s: expected the form 0000:23:00.0=1\n", rail[i]);
			return -EINVAL;
		}
	}
	return 0;
}

static ssize_t rail_show(struct device *dev, struct device_attribute *attribute, char *text)
{
	return sysfs_emit(text, "%d\n", ((struct lab_nic *)netdev_priv(to_net_dev(dev)))->rail);
}

static ssize_t rail_store(struct device *dev, struct device_attribute *attribute, const char *text, size_t size)
{
	struct lab_nic *nic = netdev_priv(to_net_dev(dev));
	int number, failed = kstrtoint(text, 0, &number);

	if (failed)
		return failed;
	WRITE_ONCE(nic->rail, number);
	return size;
}
static DEVICE_ATTR_RW(rail);

static ssize_t rdma_name_show(struct device *dev, struct device_attribute *attribute, char *text)
{
	return sysfs_emit(text, "mlx5_%d\n", ((struct lab_nic *)netdev_priv(to_net_dev(dev)))->number);
}
static DEVICE_ATTR_RO(rdma_name);

static struct attribute *attributes[] = { &dev_attr_rail.attr, &dev_attr_rdma_name.attr, NULL };
static const struct attribute_group attribute_group = { .name = "lab", .attrs = attributes };

/* Vector 0; the others come when channels are opened. */
static int take_async_vector(struct lab_nic *nic)
{
	struct pci_dev *dev = nic->pci;
	int failed = pci_alloc_irq_vectors(dev, 1, 1, PCI_IRQ_MSIX);

	if (failed < 0)
		return failed;
	if (!pci_msix_can_alloc_dyn(dev)) {
		pci_free_irq_vectors(dev);
		return -EOPNOTSUPP;
	}
	failed = pci_request_irq(dev, 0, async_interrupt, NULL, nic, "mlx5_async0@pci:%s", pci_name(dev));
	if (failed) {
		pci_free_irq_vectors(dev);
		return failed;
	}
	nic->async.map.index = 0;
	nic->async.map.virq = pci_irq_vector(dev, 0);
	lab_vector_follow(nic, &nic->async);
	return 0;
}

static void leave_async_vector(struct lab_nic *nic)
{
	lab_vector_leave(&nic->async);
	pci_free_irq(nic->pci, 0, nic);
	pci_free_irq_vectors(nic->pci);
}

static void set_up_netdev(struct lab_nic *nic)
{
	struct net_device *net = nic->net;

	SET_NETDEV_DEV(net, &nic->pci->dev);
	net->netdev_ops = &lab_net_ops;
	net->ethtool_ops = &lab_ethtool_ops;
	/* As on mlx5: only the physical function manages the port. */
	if (!nic->is_virtual)
		net->dcbnl_ops = &lab_dcb_ops;
	net->sysfs_groups[0] = &attribute_group;
	net->min_mtu = ETH_MIN_MTU;
	net->max_mtu = LAB_MOST_MTU;
	net->hw_features = NETIF_F_SG | NETIF_F_FRAGLIST | NETIF_F_HW_CSUM | NETIF_F_HIGHDMA;
	net->features = net->hw_features;
	net->vlan_features = net->hw_features;
	net->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	net->pcpu_stat_type = NETDEV_PCPU_STAT_TSTATS;
	take_address(nic);
}

static struct lab_nic *make_nic(struct pci_dev *dev, unsigned int channels)
{
	struct net_device *net = alloc_etherdev_mqs(sizeof(struct lab_nic), channels, channels);
	struct lab_nic *nic;

	if (!net)
		return NULL;
	nic = netdev_priv(net);
	nic->net = net;
	nic->pci = dev;
	nic->is_virtual = dev->is_virtfn;
	nic->rail = rail_of(pci_physfn(dev));
	nic->registers = pcim_iomap_table(dev)[0];
	nic->most_channels = channels;
	nic->wanted_channels = channels;
	nic->plugged = true;
	INIT_LIST_HEAD(&nic->on_rails);
	INIT_DELAYED_WORK(&nic->link_up, lab_link_up);
	lab_ethtool_reset(nic);
	lab_dcb_reset(nic, !strcmp(dcbx, "host"));
	set_up_netdev(nic);
	return nic;
}

static int lab_nic_probe(struct pci_dev *dev, const struct pci_device_id *id)
{
	int vectors = pci_msix_vec_count(dev), failed;
	struct lab_nic *nic;

	if (!lab_pci_is_nic(dev))
		return -ENODEV;
	if (vectors < 2)
		return -EINVAL;
	failed = pcim_enable_device(dev);
	failed = failed ?: pcim_iomap_regions(dev, BIT(0), KBUILD_MODNAME);
	if (failed)
		return failed;
	pci_set_master(dev);
	nic = make_nic(dev, min3(vectors - 1, (int)num_online_cpus(), LAB_MOST_CHANNELS));
	if (!nic)
		return -ENOMEM;
	lab_bell_start(nic);
	failed = take_async_vector(nic);
	if (failed)
		goto no_vector;
	nic->number = ida_alloc(&numbers, GFP_KERNEL);
	if (nic->number < 0) {
		failed = nic->number;
		goto no_number;
	}
	pci_set_drvdata(dev, nic);
	netif_carrier_off(nic->net);
	lab_rails_join(nic);
	failed = register_netdev(nic->net);
	if (failed)
		goto no_netdev;
	if (!nic->is_virtual) {
		lab_congestion_add(nic);
		pci_sriov_set_totalvfs(dev, MOST_VIRTUAL);
	}
	lab_link_up(&nic->link_up.work);
	return 0;

no_netdev:
	lab_rails_leave(nic);
	ida_free(&numbers, nic->number);
no_number:
	leave_async_vector(nic);
no_vector:
	free_netdev(nic->net);
	return failed;
}

static void lab_nic_remove(struct pci_dev *dev)
{
	struct lab_nic *nic = pci_get_drvdata(dev);

	if (!nic->is_virtual) {
		pci_disable_sriov(dev);
		lab_congestion_remove(nic);
	}
	lab_rdma_drop(nic);
	unregister_netdev(nic->net);
	cancel_delayed_work_sync(&nic->link_up);
	lab_rails_leave(nic);
	ida_free(&numbers, nic->number);
	leave_async_vector(nic);
	free_netdev(nic->net);
}

static int lab_nic_sriov(struct pci_dev *dev, int functions)
{
	int failed;

	if (!functions) {
		pci_disable_sriov(dev);
		return 0;
	}
	failed = pci_enable_sriov(dev, functions);
	return failed ?: functions;
}

/* A function level reset takes the emulated device's registers with it. */
static void lab_nic_reset_done(struct pci_dev *dev)
{
	struct lab_nic *nic = pci_get_drvdata(dev);

	if (nic)
		lab_bell_start(nic);
}

static const struct pci_error_handlers lab_nic_errors = { .reset_done = lab_nic_reset_done };

/* Any, since lab_pci says which; and no alias, so that nothing loads this driver by itself. */
static const struct pci_device_id lab_nic_ids[] = {
	{ PCI_DEVICE_CLASS(PCI_CLASS_NETWORK_ETHERNET << 8, ~0) },
	{ }
};

static struct pci_driver lab_nic_driver = {
	.id_table = lab_nic_ids,
	.probe = lab_nic_probe,
	.remove = lab_nic_remove,
	.sriov_configure = lab_nic_sriov,
	.err_handler = &lab_nic_errors,
};

uint lab_flap_ms(void)
{
	return READ_ONCE(flap_ms);
}

static int __init lab_nic_init(void)
{
	int failed = check_parameters();

	if (failed)
		return failed;
	failed = lab_rdma_open();
	if (failed)
		return failed;
	lab_congestion_open();
	lab_nic_driver.name = driver_name;
	failed = pci_register_driver(&lab_nic_driver);
	if (failed) {
		lab_congestion_close();
		lab_rdma_close();
	}
	return failed;
}

static void __exit lab_nic_exit(void)
{
	pci_unregister_driver(&lab_nic_driver);
	lab_congestion_close();
	lab_rdma_close();
	ida_destroy(&numbers);
}
module_init(lab_nic_init);
module_exit(lab_nic_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Railwright lab: a NIC with DCB for emulated PCI functions");
