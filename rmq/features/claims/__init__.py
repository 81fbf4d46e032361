"""Claims on business keys: show and delete them."""
