"""Build the images without a container daemon and without a registry."""
