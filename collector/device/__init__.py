"""The way of data to a device and back."""
