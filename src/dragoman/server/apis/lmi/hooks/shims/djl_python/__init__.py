"""LMI's package as an operator's file imports it: our own objects under LMI's names.

Lies in a directory of its own, which the importer puts on the path. Source of the names: the imports in LMI's documentation
and examples, v0.23 to v0.31, and v0.36 for `async_utils`.
"""

from dragoman.server.apis.lmi.hooks.inputs import Input
from dragoman.server.apis.lmi.hooks.outputs import Output

__all__ = ["Input", "Output"]
