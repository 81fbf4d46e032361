"""Messages: show, find, cancel and reschedule them; `rmq send` and `rmq tail`."""
