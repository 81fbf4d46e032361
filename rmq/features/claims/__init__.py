"""Claims on business keys, shown."""
