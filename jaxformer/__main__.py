"""`python -m jaxformer`."""

from jaxformer.cli.main import main

main()
