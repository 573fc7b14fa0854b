"""Both sides trained step beside step."""
