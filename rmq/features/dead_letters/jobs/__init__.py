"""Jobs: redrives, purges and cancels of many messages, which run in the background."""
