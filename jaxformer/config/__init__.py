"""What is asked for: frozen dataclasses, checked where they are made. No jax is imported here."""
