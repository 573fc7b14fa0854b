"""Several devices, and several processes, for one run.

mesh       the devices that a program is compiled for, by axes and sizes
placement  shardings of the arrays of a run, by one table of how parameters are sharded
link       a connection of two processes, and how all processes meet
group      what a run needs of its processes: is_first, exchange, from_first, timed phases
join       make this process one of a group, with jax.distributed
launch     start all processes of a group on this machine, and watch for those that are gone, silent or stuck

A model carries no mesh and no annotations. Code inside `mesh.on_mesh(...)` is compiled for that mesh, by the compiler's own
propagation; outside, everything here does nothing. A process on its own is a group of one.
"""
