"""The audit trail: who did what."""
