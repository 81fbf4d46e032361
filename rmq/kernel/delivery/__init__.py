"""Define a delivery: its data, its claim, and the verbs that settle it."""
