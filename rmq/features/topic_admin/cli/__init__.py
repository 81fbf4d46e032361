"""The commands `rmq topic` and `rmq stats`."""
