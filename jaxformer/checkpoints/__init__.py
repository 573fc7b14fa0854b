"""Models in folders: opened, written, described and certified.

A folder is one of three kinds, which its config.json tells: `save` wrote it, a recipe trained in it, or transformers wrote it
(an HF directory). For the third, `convert/model_type.py` is the machinery, and a file of `convert/families/` has the table of
each model type: which key of config.json is which field of our configuration, and what tensors are called. New files are found.
"""
