"""Read and keep the data of a topic that all calls use: settings, slots, counts and messages."""
