"""Transfer of data to a device and back."""
