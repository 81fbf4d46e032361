"""Values and rules: messages, settings, retries, codecs, ids, keys. No I/O and no Redis."""
