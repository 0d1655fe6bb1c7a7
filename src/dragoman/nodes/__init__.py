"""One engine for each memory node, each in a process of its own on its node's cores, behind one server.

The server has HTTP, the tokenizer and an engine that computes nothing: it sends requests, which are data, to the nodes'.
"""
