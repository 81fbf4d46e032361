"""Receive messages, settle deliveries, hand back undelivered messages, and manage leases."""
