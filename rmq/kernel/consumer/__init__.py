"""Receive messages, settle deliveries, release undelivered messages, and manage leases."""
