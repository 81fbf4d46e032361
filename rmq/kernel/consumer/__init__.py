"""Receive, settle and hand back; the leases of deliveries."""
