// SPDX-License-Identifier: GPL-2.0-only
/* DCQCN's parameters where the mlx5 driver shows them: /sys/kernel/debug/mlx5/BDF/cc_params. They steer nothing here. */
#include <linux/debugfs.h>
#include "lab_nic.h"

static const struct parameter {
	const char *name;
	u32 initial;
	u32 most;
} parameters[LAB_CONGESTION] = {
	{ "rp_clamp_tgt_rate", 0, 1 },
	{ "rp_clamp_tgt_rate_ati", 1, 1 },
	{ "rp_time_reset", 300, 131071 },
	{ "rp_byte_reset", 32767, 32767 },
	{ "rp_threshold", 1, 31 },
	{ "rp_ai_rate", 5, 131071 },
	{ "rp_max_rate", 0, 131071 },
	{ "rp_hai_rate", 50, 131071 },
	{ "rp_min_dec_fac", 50, 100 },
	{ "rp_min_rate", 1, 131071 },
	{ "rp_rate_to_set_on_first_cnp", 0, 131071 },
	{ "rp_dce_tcp_g", 1019, 1023 },
	{ "rp_dce_tcp_rtt", 1, 131071 },
	{ "rp_rate_reduce_monitor_period", 4, 131071 },
	{ "rp_initial_alpha_value", 1023, 1023 },
	{ "rp_gd", 11, 15 },
	{ "np_min_time_between_cnps", 4, 131071 },
	{ "np_cnp_dscp", 48, 63 },
	{ "np_cnp_prio_mode", 1, 1 },
	{ "np_cnp_prio", 6, 7 },
};

static struct dentry *root;

static int parameter_get(void *data, u64 *value)
{
	*value = ((struct lab_parameter *)data)->value;
	return 0;
}

static int parameter_set(void *data, u64 value)
{
	struct lab_parameter *parameter = data;

	if (value > parameter->most)
		return -EINVAL;
	parameter->value = value;
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(parameter_operations, parameter_get, parameter_set, "%llu\n");

void lab_congestion_open(void)
{
	root = debugfs_create_dir("mlx5", NULL);
}

void lab_congestion_close(void)
{
	debugfs_remove(root);
}

void lab_congestion_add(struct lab_nic *nic)
{
	struct dentry *folder;
	int i;

	nic->debugfs = debugfs_create_dir(pci_name(nic->pci), root);
	folder = debugfs_create_dir("cc_params", nic->debugfs);
	for (i = 0; i < LAB_CONGESTION; i++) {
		nic->congestion[i].value = parameters[i].initial;
		nic->congestion[i].most = parameters[i].most;
		debugfs_create_file_unsafe(parameters[i].name, 0600, folder, &nic->congestion[i], &parameter_operations);
	}
}

void lab_congestion_remove(struct lab_nic *nic)
{
	debugfs_remove(nic->debugfs);
}
