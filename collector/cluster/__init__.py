"""Import `RayCollector` from `collector`, and nothing from here elsewhere: rollouts on a Ray cluster."""
