"""The supervisor starts several worker processes, checks them, and replaces them."""
