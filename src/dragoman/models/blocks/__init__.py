"""The pieces that decoders are made of: plain functions of nodes and weights, in the forms that the plugin fuses.

Hidden states travel as [T, 1, hidden]: T tokens of all sequences of the step, concatenated; heads as [T, heads, 1,
size].
"""
