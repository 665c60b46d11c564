"""Programs that the supervisor's tests run as children; they note their lives in a file."""
