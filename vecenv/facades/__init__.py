"""Other vector APIs over the engine: import the facades from `vecenv`, and from their files here only inside vecenv."""
