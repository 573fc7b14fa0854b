"""Entry points of the recipes in a checkout: `python -m train.NAME` is `jaxformer train NAME`."""
