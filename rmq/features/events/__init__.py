"""Signal events with the command line and over HTTP, and deliver events of processes that died."""
