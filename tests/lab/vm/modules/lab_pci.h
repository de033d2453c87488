/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef LAB_PCI_H
#define LAB_PCI_H

#include <linux/pci.h>

/* PCI Express gives a function this much configuration space. */
#define LAB_SPACE 4096

enum lab_kind { LAB_GPU, LAB_NIC, LAB_PORT };

/*
 * Registers that are answered from memory in place of the emulated device. Bit by bit: where @ours is 0 the device
 * itself is asked and told.
 *
 * @express: offset of the PCI Express capability
 * @writable: what a write changes
 * @clearable: what a write of 1 clears
 */
struct lab_space {
	int domain;
	unsigned int bus;
	unsigned int devfn;
	enum lab_kind kind;
	int express;
	u8 ours[LAB_SPACE];
	u8 value[LAB_SPACE];
	u8 writable[LAB_SPACE];
	u8 clearable[LAB_SPACE];
};

/* lab_pci_space.c */
struct lab_space *lab_space_find(int domain, unsigned int bus, unsigned int devfn);
struct lab_space *lab_space_add(struct pci_dev *dev, enum lab_kind kind);
struct lab_space *lab_space_at(int index);
void lab_space_discard(void);
void lab_set(struct lab_space *space, int where, int size, u32 mask, u32 value);
void lab_let_write(struct lab_space *space, int where, int size, u32 mask);
void lab_let_clear(struct lab_space *space, int where, int size, u32 mask);
u32 lab_get(struct lab_space *space, int where, int size);
int lab_space_check(void);
void lab_space_install(void);

/* lab_pci_registers.c */
struct lab_ids {
	u32 device;	/* as in the first register: device << 16 | vendor */
	u32 subsystem;
};

/* Speeds are PCI Express codes: 1 for 2.5 GT/s up to 6 for 64 GT/s. Widths are lanes. */
struct lab_link {
	u8 speed, width;		/* what the function can do */
	u8 now_speed, now_width;	/* what was negotiated */
	u8 port_speed, port_width;	/* what the port above can do */
};

int lab_become_gpu(struct lab_space *space, struct pci_dev *dev, const struct lab_ids *ids);
int lab_become_nic(struct lab_space *space, struct pci_dev *dev, const struct lab_ids *ids);
int lab_give_acs(struct lab_space *space, struct pci_dev *dev, u16 control);
int lab_parse_link(const char *text, struct lab_link *link);
void lab_tell_link(struct lab_space *below, struct lab_space *above, const struct lab_link *link);

/* For lab_nic: is this one of the functions that were named as NICs, or a virtual function of one? */
bool lab_pci_is_nic(struct pci_dev *dev);

#endif
