"""Import public names from `collector`, and the files here only inside it: data sets on disk, never trusted."""
