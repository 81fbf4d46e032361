"""The backend of `django.tasks`, its worker, its outbox, and the Django app with the commands."""
