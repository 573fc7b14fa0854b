"""Why a module differs, told by torch's own code: it runs again with one thing altered, until it gives jax's array."""
