"""Models in folders: open, write, describe and certify them.

There are three kinds of folder, told apart by config.json: written by `save`, trained by a recipe (a run folder), or written by
transformers (an HF directory). HF directories are read by `convert/model_type.py` with the table of each model type in
`convert/families/`: which key of config.json is which configuration field, and the names of the tensors. New files in
`convert/families/` are discovered.
"""
