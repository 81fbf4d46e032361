"""Signal events over the command line and over HTTP, and deliver what other processes have left."""
