"""Settings of models and of their training: frozen dataclasses, checked when they are made. No jax is imported here."""
