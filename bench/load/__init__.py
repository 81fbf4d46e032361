"""What `bench/locustfile.py` is made of: options, users, the books of a run and its account."""
