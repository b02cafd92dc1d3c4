"""Parts that the other folders share: numbers as arguments, the clock, and how a batch is ended early."""
