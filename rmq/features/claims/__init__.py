"""Claims on business keys, for operators."""
