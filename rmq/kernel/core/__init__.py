"""Values and rules: messages, settings, retries, ids, keys, codecs. No I/O."""
