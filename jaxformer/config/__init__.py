"""Settings of models and of their training: frozen dataclasses, validated when they are created. Imports no jax."""
