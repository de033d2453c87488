// SPDX-License-Identifier: GPL-2.0-only
/*
 * Soft-RoCE (rdma_rxe) makes RDMA devices that belong to no hardware. One that stands on a NIC of this driver is moved
 * below the NIC's PCI function, where that of a real NIC is, and goes when the driver lets go of the function.
 */
#include <rdma/ib_verbs.h>
#include "lab_nic.h"

static int device_added(struct ib_device *device)
{
	struct net_device *net = ib_device_get_netdev(device, 1);
	struct lab_nic *nic = lab_nic_of(net);
	int failed = 0;

	/* A device of another kind on this NIC has its own place. */
	if (nic && device->ops.driver_id == RDMA_DRIVER_RXE)
		failed = device_move(&device->dev, &nic->pci->dev, DPM_ORDER_NONE);
	dev_put(net);
	return failed;
}

static struct ib_client client = { .name = KBUILD_MODNAME, .add = device_added };

int lab_rdma_open(void)
{
	return ib_register_client(&client);
}

void lab_rdma_close(void)
{
	ib_unregister_client(&client);
}

/* Before the NIC goes: the function must not lose a child that still lives. */
void lab_rdma_drop(struct lab_nic *nic)
{
	struct ib_device *device;

	while ((device = ib_device_get_by_netdev(nic->net, RDMA_DRIVER_RXE)))
		ib_unregister_device_and_put(device);
}
