"""Results: how messages have ended, as the scripts store and return it."""
