"""The version of RMQ."""

VERSION = "0.1.0"  # as in pyproject.toml
