"""All that speaks to Redis: connections, URLs, calls of scripts, errors, Cluster, Sentinel."""
