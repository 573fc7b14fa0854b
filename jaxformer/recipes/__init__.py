"""Recipes: each trains one system and shows what it learned, as `jaxformer train NAME` and `python -m train.NAME`."""
