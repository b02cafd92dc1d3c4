"""A job on a Ray cluster: actors play whole episodes and write their own shards; the driver keeps the manifest."""
