"""Where the writer keeps what is its own on a node."""

# Who holds LOCK is the run at work; who holds WRITE_LOCK may write. A run that starts a unit which writes itself (the
# boot unit) lends it the second one.
LOCK = "/run/railwright.lock"
WRITE_LOCK = "/run/railwright.write.lock"
FOLDER = "/var/lib/railwright"
RECORD = f"{FOLDER}/state.json"
# What takes effect at the next boot, as it stood at the last one. A boot empties /run, and this with it.
REBOOT = "/run/railwright.reboot"
# The runs that hold the node, and those whose hold has ended without their word.
RUNS = "/run/railwright.runs"
