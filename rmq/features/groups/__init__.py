"""Groups of a topic: list them, pause, resume, release and purge one."""
