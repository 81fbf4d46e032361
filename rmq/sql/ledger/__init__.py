"""Claims on business keys in a database. `rmq.ledger` has the public names."""
