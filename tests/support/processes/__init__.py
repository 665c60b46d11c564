"""Programs that the supervisor's tests run for it to keep; they note their lives in a file."""
