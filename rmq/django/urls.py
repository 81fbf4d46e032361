"""The console and the HTTP API of RMQ in a Django project, for `urls.py`.

    urlpatterns = [..., path("rmq/", include("rmq.django.urls"))]

Staff are operators, superusers are admins, and other users get 403. docs/django.md has more.
"""

from rmq.integrations.django.console import console_urls, role_of

__all__ = ["console_urls", "role_of"]

urlpatterns = console_urls()
