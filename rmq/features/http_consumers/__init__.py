"""Programs that receive and settle messages over HTTP."""
