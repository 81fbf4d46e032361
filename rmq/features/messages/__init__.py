"""Messages: show, find, cancel and reschedule them. Also `rmq send` and `rmq tail`."""
