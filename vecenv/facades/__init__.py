"""Other vector APIs over the engine: the only files that speak them."""
