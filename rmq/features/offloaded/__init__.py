"""Objects of offloaded bodies: remove those whose messages are gone, or never came."""
