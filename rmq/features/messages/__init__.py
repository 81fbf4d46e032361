"""Messages: show, find, cancel, reschedule; `rmq send` and `rmq tail`."""
