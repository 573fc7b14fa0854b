"""Speed beside PyTorch and others: the same work on every side, each in a process of its own, in turn.

items, peers        what is measured, and beside whom
problems, prepare   the weights and inputs that all sides share, made once
train_*, generate_*, start_commands, *_gpt
                    the sides
worker, processes   a side in its process, and the line of JSON between it and the parent
measure             check, warm up, rotate, record
machine, costs      what the machine can do, and what the work costs at least
results             one JSON file, which later runs add to
tables, chart       what is shown
"""
