"""What a device is: the catalogue, a user's own file, and overrides."""
