"""Arrays over several devices: a mesh, one table of how parameters are cut, and where the arrays of a run lie.

A model carries no mesh and no annotation. Code that runs inside `mesh.on_mesh(...)` is compiled for that mesh, by the
compiler's own propagation; outside of it everything here does nothing.
"""
