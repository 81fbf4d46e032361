"""The backend of `django.tasks`, its worker, its outbox, and the commands of `manage.py`."""
