"""A small Django project: an app with an order, and tasks."""
