"""The commands `rmq send`, `peek`, `get`, `tail`, `cancel`, `reschedule` and `priority`."""
