"""Worker processes, as they last reported."""
