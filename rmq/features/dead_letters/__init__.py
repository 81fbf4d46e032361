"""Dead letters: list, group, redrive, purge, restore, export and import."""
