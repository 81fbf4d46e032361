"""The framework of the HTTP API and the console: routes, requests, pages, services."""
