"""Read results, which say how messages have ended."""
