// SPDX-License-Identifier: GPL-2.0-only
/* Lends emulated PCI functions the identity of GPUs and NICs, and their ports links and ACS. See README.md. */
#include <linux/debugfs.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/string.h>
#include "lab_pci.h"

#define MOST 32

static char *gpu[MOST], *nic[MOST], *port[MOST];
static int gpus, nics, ports;
static char *gpu_id = "10de:2330", *gpu_subsystem = "10de:16c1";
static char *nic_id = "15b3:1021", *nic_subsystem = "15b3:0023";
static ushort acs = PCI_ACS_SV | PCI_ACS_RR | PCI_ACS_CR | PCI_ACS_UF;
static bool rescan_ports = true;

module_param_array(gpu, charp, &gpus, 0444);
MODULE_PARM_DESC(gpu, "functions that become GPUs: BDF[@LINK],...");
module_param_array(nic, charp, &nics, 0444);
MODULE_PARM_DESC(nic, "functions that become NICs: BDF[@LINK],...");
module_param_array(port, charp, &ports, 0444);
MODULE_PARM_DESC(port, "upstream ports of switches, with the link above: BDF@LINK,...");
module_param(gpu_id, charp, 0444);
MODULE_PARM_DESC(gpu_id, "vendor:device of the GPUs, hexadecimal");
module_param(gpu_subsystem, charp, 0444);
MODULE_PARM_DESC(gpu_subsystem, "their subsystem");
module_param(nic_id, charp, 0444);
MODULE_PARM_DESC(nic_id, "vendor:device of the NICs, hexadecimal");
module_param(nic_subsystem, charp, 0444);
MODULE_PARM_DESC(nic_subsystem, "their subsystem");
module_param(acs, ushort, 0444);
MODULE_PARM_DESC(acs, "ACS control of each port above a function, at load");
module_param(rescan_ports, bool, 0444);
MODULE_PARM_DESC(rescan_ports, "let the kernel find the ports again too, not only the functions");

/* QEMU's devices that this module knows to stand in. */
#define QEMU_EDU 0x11e81234
#define QEMU_IGB 0x10c98086

/* What is removed and found again, each once. */
static struct pci_dev *found_again[3 * MOST];
static int number_found_again;

static int parse_ids(const char *name, const char *device, const char *subsystem, struct lab_ids *ids)
{
	unsigned int vendor, number, subvendor, subnumber;
	char rest;

	if (sscanf(device, "%4x:%4x%c", &vendor, &number, &rest) != 2 ||
	    sscanf(subsystem, "%4x:%4x%c", &subvendor, &subnumber, &rest) != 2) {
		pr_err("lab_pci: %s identity %s, subsystem %s: expected two of the form 10de:2330\n", name, device,
		       subsystem);
		return -EINVAL;
	}
	ids->device = number << 16 | vendor;
	ids->subsystem = subnumber << 16 | subvendor;
	return 0;
}

/* "0000:24:00.0@32x16": the function, to be put back by the caller, and the link behind "@" or NULL. */
static struct pci_dev *parse_place(const char *text, const char **link)
{
	unsigned int domain = 0, bus, device, function;
	int length = 0;

	if (sscanf(text, "%4x:%2x:%2x.%1u%n", &domain, &bus, &device, &function, &length) != 4 || !length) {
		domain = 0;
		length = 0;
		if (sscanf(text, "%2x:%2x.%1u%n", &bus, &device, &function, &length) != 3 || !length)
			return ERR_PTR(-EINVAL);
	}
	if (text[length] && text[length] != '@')
		return ERR_PTR(-EINVAL);
	if (device > 31 || function > 7)
		return ERR_PTR(-EINVAL);
	*link = text[length] ? text + length + 1 : NULL;
	return pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(device, function)) ?: ERR_PTR(-ENODEV);
}

static struct lab_space *space_of(struct pci_dev *dev, enum lab_kind kind)
{
	return lab_space_find(pci_domain_nr(dev->bus), dev->bus->number, dev->devfn) ?: lab_space_add(dev, kind);
}

/* Downstream and root ports have ACS; an upstream port has none. */
static int give_way_up_acs(struct pci_dev *dev)
{
	struct pci_dev *bridge;

	for (bridge = pci_upstream_bridge(dev); bridge; bridge = pci_upstream_bridge(bridge)) {
		struct lab_space *space = space_of(bridge, LAB_PORT);
		int type = pci_pcie_type(bridge), failed;

		if (!space)
			return -ENOMEM;
		if (type != PCI_EXP_TYPE_DOWNSTREAM && type != PCI_EXP_TYPE_ROOT_PORT)
			continue;
		failed = lab_give_acs(space, bridge, acs);
		if (failed)
			return failed;
	}
	return 0;
}

static int tell_link(struct pci_dev *dev, struct lab_space *space, const char *text)
{
	struct pci_dev *bridge = pci_upstream_bridge(dev);
	struct lab_space *above = bridge ? space_of(bridge, LAB_PORT) : NULL;
	struct lab_link link;
	int failed;

	if (!above || !above->express || !space->express)
		return -ENOTCONN;
	failed = lab_parse_link(text, &link);
	if (!failed)
		lab_tell_link(space, above, &link);
	return failed;
}

static void find_again(struct pci_dev *dev)
{
	int i;

	while (rescan_ports && pci_upstream_bridge(dev))
		dev = pci_upstream_bridge(dev);
	for (i = 0; i < number_found_again; i++)
		if (found_again[i] == dev)
			return;
	found_again[number_found_again++] = pci_dev_get(dev);
}

static bool stands_in(struct pci_dev *dev, enum lab_kind kind)
{
	u32 id = (u32)dev->device << 16 | dev->vendor;

	if (kind == LAB_PORT)
		return pci_pcie_type(dev) == PCI_EXP_TYPE_UPSTREAM;
	return id == (kind == LAB_GPU ? QEMU_EDU : QEMU_IGB) && pci_upstream_bridge(dev);
}

static int become(struct pci_dev *dev, enum lab_kind kind, const struct lab_ids *ids, const char *link)
{
	struct lab_space *space;
	int failed = 0;

	if (!stands_in(dev, kind))
		return -EMEDIUMTYPE;
	/* A port has a space already where a function below it was named. */
	space = lab_space_find(pci_domain_nr(dev->bus), dev->bus->number, dev->devfn);
	if (space && kind != LAB_PORT)
		return -EEXIST;
	space = space ?: lab_space_add(dev, kind);
	if (!space)
		return -ENOMEM;
	if (kind == LAB_GPU)
		failed = lab_become_gpu(space, dev, ids);
	else if (kind == LAB_NIC)
		failed = lab_become_nic(space, dev, ids);
	if (!failed)
		failed = give_way_up_acs(dev);
	if (!failed && link)
		failed = tell_link(dev, space, link);
	return failed;
}

static const char *why(int failed)
{
	switch (failed) {
	case -EINVAL:
		return "is not of the form 0000:24:00.0@32x16";
	case -ERANGE:
		return "has a link that runs above what an end of it can do";
	case -ENODEV:
		return "is no function of this machine";
	case -EMEDIUMTYPE:
		return "is no stand-in: expected edu for a GPU, igb for a NIC, an upstream port, behind a port";
	case -EEXIST:
		return "is named twice";
	case -ENOTCONN:
		return "has no link above";
	}
	return "failed";
}

static int become_all(const char *name, char **texts, int number, enum lab_kind kind, const struct lab_ids *ids)
{
	int i, failed;

	for (i = 0; i < number; i++) {
		const char *link;
		struct pci_dev *dev = parse_place(texts[i], &link);

		failed = PTR_ERR_OR_ZERO(dev);
		if (!failed) {
			failed = become(dev, kind, ids, link);
			if (!failed)
				find_again(dev);
			pci_dev_put(dev);
		}
		if (failed) {
			pr_err("lab_pci: %s=%s %s (%d)\n", name, texts[i], why(failed), failed);
			return failed;
		}
	}
	return 0;
}

static void remove_and_rescan(void)
{
	int i;

	pci_lock_rescan_remove();
	for (i = 0; i < number_found_again; i++) {
		struct pci_bus *bus = found_again[i]->bus;

		pci_stop_and_remove_bus_device(found_again[i]);
		pci_rescan_bus(bus);
	}
	pci_unlock_rescan_remove();
}

static void forget_found_again(void)
{
	while (number_found_again)
		pci_dev_put(found_again[--number_found_again]);
}

static int link_show(struct seq_file *file, void *unused)
{
	static const char * const kinds[] = { "gpu", "nic", "port" };
	static const char * const speeds[] = { "?", "2.5", "5", "8", "16", "32", "64" };
	struct lab_space *space;
	int i;

	for (i = 0; (space = lab_space_at(i)); i++) {
		u32 able = lab_get(space, space->express + PCI_EXP_LNKCAP, 4);
		u32 now = lab_get(space, space->express + PCI_EXP_LNKSTA, 2);

		seq_printf(file, "%04x:%02x:%02x.%d %s", space->domain, space->bus, PCI_SLOT(space->devfn),
			   PCI_FUNC(space->devfn), kinds[space->kind]);
		if (able & PCI_EXP_LNKCAP_SLS)
			seq_printf(file, " %sx%d/%sx%d", speeds[min(able & PCI_EXP_LNKCAP_SLS, 6U)],
				   (able & PCI_EXP_LNKCAP_MLW) >> 4, speeds[min(now & PCI_EXP_LNKSTA_CLS, 6U)],
				   (now & PCI_EXP_LNKSTA_NLW) >> 4);
		seq_puts(file, "\n");
	}
	return 0;
}

static int link_open(struct inode *inode, struct file *file)
{
	return single_open(file, link_show, NULL);
}

static ssize_t link_write(struct file *file, const char __user *from, size_t size, loff_t *offset)
{
	const char *link = NULL;
	struct lab_space *space;
	struct pci_dev *dev;
	char text[64];
	int failed;

	if (size >= sizeof(text))
		return -EINVAL;
	if (copy_from_user(text, from, size))
		return -EFAULT;
	text[size] = '\0';
	dev = parse_place(text, &link);
	if (IS_ERR(dev))
		return PTR_ERR(dev);
	space = lab_space_find(pci_domain_nr(dev->bus), dev->bus->number, dev->devfn);
	failed = link && space ? tell_link(dev, space, link) : -EINVAL;
	pci_dev_put(dev);
	return failed ?: size;
}

static const struct file_operations link_operations = {
	.owner = THIS_MODULE,
	.open = link_open,
	.read = seq_read,
	.write = link_write,
	.llseek = seq_lseek,
	.release = single_release,
};

bool lab_pci_is_nic(struct pci_dev *dev)
{
	struct pci_dev *physical = pci_physfn(dev);
	struct lab_space *space = lab_space_find(pci_domain_nr(physical->bus), physical->bus->number, physical->devfn);

	return space && space->kind == LAB_NIC;
}
EXPORT_SYMBOL_GPL(lab_pci_is_nic);

static int __init lab_pci_init(void)
{
	struct lab_ids gpu_ids, nic_ids;
	int failed;

	failed = parse_ids("gpu", gpu_id, gpu_subsystem, &gpu_ids);
	failed = failed ?: parse_ids("nic", nic_id, nic_subsystem, &nic_ids);
	failed = failed ?: become_all("gpu", gpu, gpus, LAB_GPU, &gpu_ids);
	failed = failed ?: become_all("nic", nic, nics, LAB_NIC, &nic_ids);
	failed = failed ?: become_all("port", port, ports, LAB_PORT, NULL);
	failed = failed ?: lab_space_check();
	if (failed) {
		forget_found_again();
		lab_space_discard();
		return failed;
	}
	if (gpus + nics + ports)
		lab_space_install();
	remove_and_rescan();
	forget_found_again();
	debugfs_create_file("link", 0600, debugfs_create_dir("lab_pci", NULL), NULL, &link_operations);
	pr_info("lab_pci: %d GPUs, %d NICs\n", gpus, nics);
	return 0;
}
/* No exit: another CPU may be inside the operations at any time, and nothing tells when it has left. */
module_init(lab_pci_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Railwright lab: identities of a GPU server for emulated PCI functions");
