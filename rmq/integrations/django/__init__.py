"""The backend of `django.tasks`, its worker, its outbox, and the app with their commands."""
