"""Rollouts on a Ray cluster; `RayCollector` is in `collector`."""
