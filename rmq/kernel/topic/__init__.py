"""Read and store the data of a topic that all calls use: settings, slots, counts and messages."""
