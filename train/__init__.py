"""Recipes: `python -m train.NAME` trains one system and shows what it learned."""
