"""Events: signal an event, and finish the work of processes that died during a signal."""
