"""The web console: pages for people, served by `rmq server` below /console."""
