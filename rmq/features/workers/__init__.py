"""Worker processes and their reports."""
