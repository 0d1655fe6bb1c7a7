"""One engine per memory node, in a process on the node's cores, behind one server.

The server has HTTP, the tokenizer and an engine that computes nothing: it sends requests to the nodes.
"""
