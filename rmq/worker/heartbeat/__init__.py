"""The heartbeat: a process that renews the leases of a worker, independent of its handlers."""
