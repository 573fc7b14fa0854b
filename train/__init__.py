"""`python -m train.NAME` is `jaxformer train NAME`, from a checkout."""
