"""Search for the cause of caches that differ."""
