"""Signal events, and deliver them to the messages that wait for them."""
