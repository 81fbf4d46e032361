"""Objects of offloaded bodies: remove objects whose messages are gone or were never stored."""
