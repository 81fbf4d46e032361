"""Groups of a topic: list, pause, resume, release and purge them."""
