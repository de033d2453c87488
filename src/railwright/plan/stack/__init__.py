"""Facts of the trade about operating systems, archives, drivers and kernels: data, each row with its source and date.

Nothing here names a host: where packages come from is the site's word (`policy.driver.repositories`). Rows are looked
up by the planner on the controller and on the node, so they travel as code does.
"""
