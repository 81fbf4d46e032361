"""`rmq send`, `peek`, `get`, `tail`, `cancel`, `reschedule`, `priority`."""
