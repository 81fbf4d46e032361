"""The broker and the result backend of taskiq."""
