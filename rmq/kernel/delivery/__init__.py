"""Define a delivery: its data, its claim, and the methods that settle it."""
