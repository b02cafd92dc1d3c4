"""Parts that the other folders share: the clock, and `Interruptor`."""
