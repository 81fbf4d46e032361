"""The audit trail: actions of users and programs."""
