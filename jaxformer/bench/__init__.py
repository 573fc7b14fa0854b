"""Benchmarks beside PyTorch: the same work on every side, each side in a process of its own, in turn.

commands            `jaxformer bench`: its flags, and item after item measured
items               work that is measured, and the peers it is compared with
problems, prepare   weights and inputs that all sides share, made once
train_*, generate_*, *_gpt, first_text, twin_run
                    the sides
runners, worker     a side in its process, and the lines of JSON between it and the parent
measure             check, warm up, rotate, record
limits              peak speed of the machine, and the least cost of the work
results             one JSON file, which later runs add to; tables and a chart of it
"""
