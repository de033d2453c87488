// SPDX-License-Identifier: GPL-2.0-only
/*
 * Configuration space in two layers: the emulated device's registers, and over them bits that are answered from memory.
 *
 * Everything in the kernel and in user space reads configuration space through the pci_ops of a bus, and a new bus
 * inherits those of the bus above. Replacing them on a whole tree therefore holds across remove and rescan.
 */
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include "lab_pci.h"

#define MOST_SPACES 64

/* Only grows, and only before the operations are installed: looking up needs no lock. */
static struct lab_space *spaces[MOST_SPACES];
static int number_of_spaces;

static struct pci_ops *device_ops;
static struct pci_ops lab_ops;
/* Configuration space is also accessed with interrupts off, to mask a vector. */
static DEFINE_RAW_SPINLOCK(value_lock);

struct lab_space *lab_space_find(int domain, unsigned int bus, unsigned int devfn)
{
	int i;

	for (i = 0; i < number_of_spaces; i++)
		if (spaces[i]->bus == bus && spaces[i]->devfn == devfn && spaces[i]->domain == domain)
			return spaces[i];
	return NULL;
}

struct lab_space *lab_space_at(int index)
{
	return index < number_of_spaces ? spaces[index] : NULL;
}

/* NULL where there is no memory, or no more room. */
struct lab_space *lab_space_add(struct pci_dev *dev, enum lab_kind kind)
{
	struct lab_space *space;

	if (number_of_spaces == MOST_SPACES)
		return NULL;
	space = kzalloc(sizeof(*space), GFP_KERNEL);
	if (!space)
		return NULL;
	space->domain = pci_domain_nr(dev->bus);
	space->bus = dev->bus->number;
	space->devfn = dev->devfn;
	space->kind = kind;
	space->express = pci_pcie_cap(dev);
	spaces[number_of_spaces++] = space;
	return space;
}

/* Before they are installed only. */
void lab_space_discard(void)
{
	while (number_of_spaces)
		kfree(spaces[--number_of_spaces]);
}

static u32 all_of(int size)
{
	return size == 4 ? ~0U : (1U << (8 * size)) - 1;
}

static u32 gather(const u8 *bytes, int where, int size)
{
	u32 found = 0;
	int i;

	for (i = 0; i < size; i++)
		found |= (u32)bytes[where + i] << (8 * i);
	return found;
}

static void scatter(u8 *bytes, int where, int size, u32 mask, u32 value)
{
	int i;

	for (i = 0; i < size; i++) {
		u8 some = mask >> (8 * i);

		bytes[where + i] = (bytes[where + i] & ~some) | ((value >> (8 * i)) & some);
	}
}

/* The bits of mask are ours from now on, read only, with this value. */
void lab_set(struct lab_space *space, int where, int size, u32 mask, u32 value)
{
	unsigned long flags;

	raw_spin_lock_irqsave(&value_lock, flags);
	scatter(space->value, where, size, mask, value);
	scatter(space->ours, where, size, mask, ~0U);
	raw_spin_unlock_irqrestore(&value_lock, flags);
}

void lab_let_write(struct lab_space *space, int where, int size, u32 mask)
{
	scatter(space->writable, where, size, mask, ~0U);
}

void lab_let_clear(struct lab_space *space, int where, int size, u32 mask)
{
	scatter(space->clearable, where, size, mask, ~0U);
}

u32 lab_get(struct lab_space *space, int where, int size)
{
	unsigned long flags;
	u32 found;

	raw_spin_lock_irqsave(&value_lock, flags);
	found = gather(space->value, where, size);
	raw_spin_unlock_irqrestore(&value_lock, flags);
	return found;
}

/* A function that was unplugged must not be answered for. */
static bool is_present(struct pci_bus *bus, unsigned int devfn)
{
	u32 id;

	return !device_ops->read(bus, devfn, PCI_VENDOR_ID, 4, &id) && id != ~0U;
}

static int lab_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct lab_space *space = lab_space_find(pci_domain_nr(bus), bus->number, devfn);
	u32 ours = space ? gather(space->ours, where, size) : 0;
	u32 real = 0;

	if (!ours)
		return device_ops->read(bus, devfn, where, size, value);
	if (!is_present(bus, devfn)) {
		*value = all_of(size);
		return PCIBIOS_DEVICE_NOT_FOUND;
	}
	if (ours != all_of(size)) {
		int failed = device_ops->read(bus, devfn, where, size, &real);

		if (failed)
			return failed;
	}
	*value = (real & ~ours) | (lab_get(space, where, size) & ours);
	return PCIBIOS_SUCCESSFUL;
}

static void write_ours(struct lab_space *space, int where, int size, u32 ours, u32 value)
{
	unsigned long flags;
	u32 old;

	raw_spin_lock_irqsave(&value_lock, flags);
	old = gather(space->value, where, size);
	scatter(space->value, where, size, ours & gather(space->writable, where, size), value);
	scatter(space->value, where, size, ours & gather(space->clearable, where, size), old & ~value);
	raw_spin_unlock_irqrestore(&value_lock, flags);
}

static int lab_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	struct lab_space *space = lab_space_find(pci_domain_nr(bus), bus->number, devfn);
	u32 ours = space ? gather(space->ours, where, size) : 0;

	if (!ours)
		return device_ops->write(bus, devfn, where, size, value);
	write_ours(space, where, size, ours, value);
	if (ours != all_of(size)) {
		u32 real;
		int failed = device_ops->read(bus, devfn, where, size, &real);

		if (failed)
			return failed;
		return device_ops->write(bus, devfn, where, size, (real & ours) | (value & ~ours));
	}
	return PCIBIOS_SUCCESSFUL;
}

static struct pci_bus *root_of(const struct lab_space *space)
{
	struct pci_bus *bus = pci_find_bus(space->domain, space->bus);

	while (bus && !pci_is_root_bus(bus))
		bus = bus->parent;
	return bus;
}

static int check_tree(struct pci_bus *bus)
{
	struct pci_bus *child;
	int failed;

	if (!device_ops)
		device_ops = bus->ops;
	if (bus->ops != device_ops) {
		pr_err("lab_pci: bus %04x:%02x is accessed in a way of its own\n", pci_domain_nr(bus), bus->number);
		return -EOPNOTSUPP;
	}
	list_for_each_entry(child, &bus->children, node) {
		failed = check_tree(child);
		if (failed)
			return failed;
	}
	return 0;
}

/* Can all trees that have a space be served? One set of operations is kept to fall back on. */
int lab_space_check(void)
{
	int i, failed;

	for (i = 0; i < number_of_spaces; i++) {
		failed = check_tree(root_of(spaces[i]));
		if (failed)
			return failed;
	}
	return 0;
}

static void install_tree(struct pci_bus *bus)
{
	struct pci_bus *child;

	pci_bus_set_ops(bus, &lab_ops);
	list_for_each_entry(child, &bus->children, node)
		install_tree(child);
}

void lab_space_install(void)
{
	int i;

	lab_ops = *device_ops;
	lab_ops.read = lab_read;
	lab_ops.write = lab_write;
	for (i = 0; i < number_of_spaces; i++)
		install_tree(root_of(spaces[i]));
}
