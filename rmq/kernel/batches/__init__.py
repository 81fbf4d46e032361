"""Store batches. When all messages of a batch have ended, RMQ sends its callback message."""
