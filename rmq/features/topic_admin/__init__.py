"""Topics: create, change, resize, pause, delete and count them."""
