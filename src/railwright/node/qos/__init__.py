"""How the QoS of a port is told: the outputs of `dcb` and `mlnx_qos`, and where drivers keep the rest. Pure but for the
paths: whoever reads the node or writes it runs the tools."""
