"""The processes of one run: they meet, agree, watch each other, and end together. A process alone is a group of one.

link      a connection of two processes, and how all of them meet
group     what a run asks for: is_first, exchange, from_first, a step that is timed
watch     who is gone, silent or stuck
together  this process is one of a group; whatever ends one ends all
join      the same with jax.distributed
launch    a whole group on this machine
"""
