"""`rmq topic` and `rmq stats`."""
