"""Define values and rules, without I/O: messages, settings, retries, ids, keys, codecs."""
