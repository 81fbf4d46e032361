"""The part `size`: what RMQ and its Redis do with millions of messages that wait."""
