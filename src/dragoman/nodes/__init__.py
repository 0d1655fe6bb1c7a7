"""One engine per memory node, in a process on the node's cores, behind one server."""
