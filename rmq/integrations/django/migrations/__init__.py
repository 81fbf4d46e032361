"""Migrations of the Django app: the tables of the outbox."""
