"""The framework of the server's HTTP API and console: routes, requests, pages, services."""
