"""The heartbeat: a process that renews the leases of a worker while handlers run."""
