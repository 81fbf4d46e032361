"""Tests of the adapters for other frameworks."""
