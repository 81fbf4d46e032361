"""The parts of `bench/locustfile.py`: options, users, the message log of a run and its account."""
