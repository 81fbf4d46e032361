"""Tools for developers of RMQ; not part of the wheel."""
