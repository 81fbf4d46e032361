"""Signal events. Deliver each event to the messages that wait for it."""
