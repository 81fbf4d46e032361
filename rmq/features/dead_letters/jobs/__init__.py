"""Jobs: redrives and purges of many dead letters that run in the background."""
