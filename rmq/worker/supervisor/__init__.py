"""The supervisor: several worker processes, started, checked and replaced."""
