"""Several devices and several processes of one run.

mesh       the devices a program is compiled for, by axes and sizes
rules      one table of how parameters are cut
placement  where the arrays of a run lie
link       a connection of two processes, and how all of them meet
group      what a run asks for: is_first, exchange, from_first, a step that is timed
watch      who is gone, silent or stuck
join       this process becomes one of a group, with jax.distributed
launch     a whole group on this machine

A model carries no mesh and no annotation. Code inside of `mesh.on_mesh(...)` is compiled for that mesh, by the compiler's own
propagation; outside of it everything here does nothing. A process alone is a group of one.
"""
