"""Causes that the arrays of both sides tell, without torch's code: where a reference was dumped, they are all there is."""
