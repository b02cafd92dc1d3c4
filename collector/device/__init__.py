"""Import public names from `collector`, and the files here only inside `collector`: tensors and transfers."""
