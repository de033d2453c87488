// SPDX-License-Identifier: GPL-2.0-only
/* What stands in the registers of a GPU, a NIC and a port: layouts from the PCI Express Base Specification, chapter 7. */
#include <linux/ctype.h>
#include <linux/kernel.h>
#include "lab_pci.h"

/* Where this module's capabilities go; the stand-ins have nothing there. */
#define EXPRESS_AT 0x78
#define AER_AT 0x100
#define ACS_AT 0xf00

#define GPU_CLASS 0x030200a1
#define NIC_CLASS 0x02000000
/* "ConnectX Family mlx5Gen Virtual Function" */
#define NIC_VIRTUAL_DEVICE 0x101e

#define MAX_PAYLOAD_512 2
#define MAX_READ_512 (2 << 12)
#define TEN_BIT_TAGS (BIT(16) | BIT(17))	/* Device Capabilities 2: completer, requester */
#define TEN_BIT_TAG_ENABLE BIT(12)		/* Device Control 2 */

/* Masks of an ACS without egress control: SV TB RR CR UF, and DT. */
#define ACS_ALL 0x5f

static void set_identity(struct lab_space *space, const struct lab_ids *ids, u32 class_revision)
{
	lab_set(space, PCI_VENDOR_ID, 4, ~0U, ids->device);
	lab_set(space, PCI_CLASS_REVISION, 4, ~0U, class_revision);
	lab_set(space, PCI_SUBSYSTEM_VENDOR_ID, 4, ~0U, ids->subsystem);
}

/* Offset of the byte that ends the list of capabilities. */
static int end_of_capabilities(struct pci_dev *dev)
{
	int link = PCI_CAPABILITY_LIST, most = 48;
	u8 next;

	while (most--) {
		pci_read_config_byte(dev, link, &next);
		if (next < PCI_STD_HEADER_SIZEOF)
			return link;
		link = (next & ~3) + PCI_CAP_LIST_NEXT;
	}
	return -EINVAL;
}

/* What a driver or an administrator sets of an endpoint: read request and payload size, ordering, tags. */
static void set_controls(struct lab_space *space)
{
	int at = space->express;
	u16 control = PCI_EXP_DEVCTL_RELAX_EN | PCI_EXP_DEVCTL_PAYLOAD | PCI_EXP_DEVCTL_EXT_TAG |
		      PCI_EXP_DEVCTL_NOSNOOP_EN | PCI_EXP_DEVCTL_READRQ;

	lab_set(space, at + PCI_EXP_DEVCAP, 4, PCI_EXP_DEVCAP_PAYLOAD | PCI_EXP_DEVCAP_EXT_TAG,
		MAX_PAYLOAD_512 | PCI_EXP_DEVCAP_EXT_TAG);
	lab_set(space, at + PCI_EXP_DEVCTL, 2, control,
		MAX_READ_512 | PCI_EXP_DEVCTL_RELAX_EN | PCI_EXP_DEVCTL_EXT_TAG | PCI_EXP_DEVCTL_NOSNOOP_EN);
	lab_let_write(space, at + PCI_EXP_DEVCTL, 2, control);
	lab_set(space, at + PCI_EXP_DEVCAP2, 4, TEN_BIT_TAGS, TEN_BIT_TAGS);
	lab_set(space, at + PCI_EXP_DEVCTL2, 2, TEN_BIT_TAG_ENABLE, TEN_BIT_TAG_ENABLE);
	lab_let_write(space, at + PCI_EXP_DEVCTL2, 2, TEN_BIT_TAG_ENABLE);
}

/* An endpoint's capability, all of it, with a link of 2.5 GT/s and one lane until another is told. */
static void add_express(struct lab_space *space)
{
	int at = EXPRESS_AT;
	u16 errors = PCI_EXP_DEVCTL_CERE | PCI_EXP_DEVCTL_NFERE | PCI_EXP_DEVCTL_FERE | PCI_EXP_DEVCTL_URRE;
	u16 link = PCI_EXP_LNKCTL_RCB | PCI_EXP_LNKCTL_CCC | PCI_EXP_LNKCTL_ES;

	space->express = at;
	lab_set(space, at, 4, ~0U, PCI_CAP_ID_EXP | (2 | PCI_EXP_TYPE_ENDPOINT << 4) << 16);
	lab_set(space, at + PCI_EXP_DEVCAP, 4, ~0U, PCI_EXP_DEVCAP_RBER);
	lab_set(space, at + PCI_EXP_DEVCTL, 4, ~0U, 0);
	lab_let_write(space, at + PCI_EXP_DEVCTL, 2, errors);
	lab_let_clear(space, at + PCI_EXP_DEVSTA, 2,
		      PCI_EXP_DEVSTA_CED | PCI_EXP_DEVSTA_NFED | PCI_EXP_DEVSTA_FED | PCI_EXP_DEVSTA_URD);
	lab_set(space, at + PCI_EXP_LNKCAP, 4, ~0U, PCI_EXP_LNKCAP_SLS_2_5GB | 1 << 4);
	lab_set(space, at + PCI_EXP_LNKCTL, 4, ~0U, (PCI_EXP_LNKSTA_SLC | PCI_EXP_LNKSTA_CLS_2_5GB | 1 << 4) << 16);
	lab_let_write(space, at + PCI_EXP_LNKCTL, 2, link);
	lab_set(space, at + PCI_EXP_DEVCAP2, 4, ~0U, 0);
	lab_set(space, at + PCI_EXP_DEVCTL2, 4, ~0U, 0);
	lab_set(space, at + PCI_EXP_LNKCAP2, 4, ~0U, PCI_EXP_LNKCAP2_SLS_2_5GB);
	lab_set(space, at + PCI_EXP_LNKCTL2, 4, ~0U, 1);
	lab_let_write(space, at + PCI_EXP_LNKCTL2, 2, PCI_EXP_LNKCTL2_TLS);
}

/* Error reporting with nothing to report: the kernel counts in aer_dev_correctable where this is. */
static void add_aer(struct lab_space *space)
{
	int at = AER_AT;

	lab_set(space, at, 4, ~0U, PCI_EXT_CAP_ID_ERR | 2 << 16);
	lab_let_clear(space, at + PCI_ERR_UNCOR_STATUS, 4, 0x07fff030);
	lab_let_write(space, at + PCI_ERR_UNCOR_MASK, 4, 0x07fff030);
	lab_set(space, at + PCI_ERR_UNCOR_SEVER, 4, ~0U, 0x00462030);
	lab_let_write(space, at + PCI_ERR_UNCOR_SEVER, 4, 0x07fff030);
	lab_let_clear(space, at + PCI_ERR_COR_STATUS, 4, 0x0000f1c1);
	lab_set(space, at + PCI_ERR_COR_MASK, 4, ~0U, PCI_ERR_COR_ADV_NFAT);
	lab_let_write(space, at + PCI_ERR_COR_MASK, 4, 0x0000f1c1);
}

/* @dev has conventional configuration space: the extended one is ours altogether. */
int lab_become_gpu(struct lab_space *space, struct pci_dev *dev, const struct lab_ids *ids)
{
	int where, link = end_of_capabilities(dev);

	if (link < 0)
		return link;
	set_identity(space, ids, GPU_CLASS);
	lab_set(space, link, 1, 0xff, EXPRESS_AT);
	lab_set(space, PCI_STATUS, 2, PCI_STATUS_CAP_LIST, PCI_STATUS_CAP_LIST);
	add_express(space);
	set_controls(space);
	for (where = PCI_CFG_SPACE_SIZE; where < LAB_SPACE; where += 4)
		lab_set(space, where, 4, ~0U, 0);
	add_aer(space);
	return 0;
}

int lab_become_nic(struct lab_space *space, struct pci_dev *dev, const struct lab_ids *ids)
{
	int virtual = pci_find_ext_capability(dev, PCI_EXT_CAP_ID_SRIOV);

	if (!space->express)
		return -EINVAL;
	set_identity(space, ids, NIC_CLASS);
	set_controls(space);
	if (virtual)
		lab_set(space, virtual + PCI_SRIOV_VF_DID, 2, 0xffff, NIC_VIRTUAL_DEVICE);
	return 0;
}

/* Offset of the last header in the list of extended capabilities; 0 where there is none. */
static int last_extended(struct pci_dev *dev)
{
	int at = PCI_CFG_SPACE_SIZE, most = (LAB_SPACE - PCI_CFG_SPACE_SIZE) / 8;
	u32 header;

	while (most--) {
		if (pci_read_config_dword(dev, at, &header) || !header || header == ~0U)
			return 0;
		if (!PCI_EXT_CAP_NEXT(header))
			return at;
		at = PCI_EXT_CAP_NEXT(header);
	}
	return 0;
}

int lab_give_acs(struct lab_space *space, struct pci_dev *dev, u16 control)
{
	int at = pci_find_ext_capability(dev, PCI_EXT_CAP_ID_ACS);
	u16 able = ACS_ALL;

	if (at) {
		pci_read_config_word(dev, at + PCI_ACS_CAP, &able);
		able &= ACS_ALL;
	} else {
		int last = last_extended(dev);

		if (!last)
			return -EINVAL;
		at = ACS_AT;
		lab_set(space, last, 4, 0xfff00000, at << 20);
		lab_set(space, at, 4, ~0U, PCI_EXT_CAP_ID_ACS | 1 << 16);
		lab_set(space, at + PCI_ACS_CAP, 4, ~0U, able);
	}
	lab_set(space, at + PCI_ACS_CTRL, 2, able, control & able);
	lab_let_write(space, at + PCI_ACS_CTRL, 2, able);
	return 0;
}

static int parse_speed(const char **text, u8 *speed)
{
	static const char * const names[] = { "2.5x", "5x", "8x", "16x", "32x", "64x" };
	int i;

	for (i = 0; i < ARRAY_SIZE(names); i++) {
		size_t length = strlen(names[i]);

		if (!strncmp(*text, names[i], length)) {
			*text += length;
			*speed = i + 1;
			return 0;
		}
	}
	return -EINVAL;
}

static int parse_pair(const char **text, u8 *speed, u8 *width)
{
	int failed = parse_speed(text, speed);
	unsigned int lanes = 0;

	if (failed)
		return failed;
	while (isdigit(**text) && lanes < 100)
		lanes = lanes * 10 + *(*text)++ - '0';
	if (lanes != 1 && lanes != 2 && lanes != 4 && lanes != 8 && lanes != 16)
		return -EINVAL;
	*width = lanes;
	return 0;
}

/* "32x16", "32x16/16x8" or "32x16/16x8/32x8", perhaps with a line's end behind it. */
int lab_parse_link(const char *text, struct lab_link *link)
{
	int failed = parse_pair(&text, &link->speed, &link->width);

	link->now_speed = link->speed;
	link->now_width = link->width;
	link->port_speed = link->speed;
	link->port_width = link->width;
	if (!failed && *text == '/') {
		text++;
		failed = parse_pair(&text, &link->now_speed, &link->now_width);
	}
	if (!failed && *text == '/') {
		text++;
		failed = parse_pair(&text, &link->port_speed, &link->port_width);
	}
	if (failed || (*text && *text != '\n'))
		return -EINVAL;
	/* A link runs at what both ends can do, or below. */
	if (link->now_speed > min(link->speed, link->port_speed) || link->now_width > min(link->width, link->port_width))
		return -ERANGE;
	return 0;
}

static void tell_end(struct lab_space *space, u8 speed, u8 width, const struct lab_link *link)
{
	int at = space->express;

	lab_set(space, at + PCI_EXP_LNKCAP, 4, PCI_EXP_LNKCAP_SLS | PCI_EXP_LNKCAP_MLW, speed | width << 4);
	lab_set(space, at + PCI_EXP_LNKSTA, 2, PCI_EXP_LNKSTA_CLS | PCI_EXP_LNKSTA_NLW,
		link->now_speed | link->now_width << 4);
	/* One bit a speed, from bit 1 on. */
	lab_set(space, at + PCI_EXP_LNKCAP2, 4, 0xfe, (2U << speed) - 2);
	lab_set(space, at + PCI_EXP_LNKCTL2, 2, PCI_EXP_LNKCTL2_TLS, speed);
	lab_let_write(space, at + PCI_EXP_LNKCTL2, 2, PCI_EXP_LNKCTL2_TLS);
}

void lab_tell_link(struct lab_space *below, struct lab_space *above, const struct lab_link *link)
{
	tell_end(below, link->speed, link->width, link);
	tell_end(above, link->port_speed, link->port_width, link);
}
