"""Families of decoders with DeepSeek's latent attention, or with experts as it has them."""
