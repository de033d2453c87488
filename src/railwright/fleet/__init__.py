"""Many nodes: running playbooks over them, and what is sent to them."""
