"""Import public names from `collector`, and the files here only inside it: episodes, their numbers and seeds."""
