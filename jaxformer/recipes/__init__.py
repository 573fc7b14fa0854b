"""Recipes: each trains one system and shows what it learned, as `jaxformer train NAME` and `python -m train.NAME`.

The scripts `train/NAME.py` are modules of this package: in a checkout they are read from `train`, a wheel carries them in here.
"""

from pathlib import Path

if not Path(__file__).with_name("reverse.py").exists():
    __path__.append(str(Path(__file__).parents[2] / "train"))
