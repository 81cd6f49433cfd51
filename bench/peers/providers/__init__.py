"""One file per peer; provider.discover() finds them."""
