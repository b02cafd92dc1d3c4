"""Import public names from `collector`, and `main` from `cli`: jobs, from a command line to episodes on disk."""
