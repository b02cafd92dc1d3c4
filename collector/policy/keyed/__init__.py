"""Actions that depend on (job seed, episode number, step) alone: random ones, and samples of distributions."""
