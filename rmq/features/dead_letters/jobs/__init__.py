"""Jobs: redrives and purges of many dead letters that go on by themselves."""
