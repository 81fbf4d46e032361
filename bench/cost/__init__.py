"""The cost of a message in Redis and in the client, by verb, kind and batch: `--only cost`."""
