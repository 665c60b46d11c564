"""The images: what is in them, and how they run in pods."""
