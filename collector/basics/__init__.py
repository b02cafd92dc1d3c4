"""Parts that the other folders share: checks of numbers, the clock, and `Interruptor`."""
