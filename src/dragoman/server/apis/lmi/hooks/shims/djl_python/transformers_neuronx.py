"""LMI's `djl_python.transformers_neuronx`."""

from dragoman.server.apis.lmi.hooks.service import Service


class TransformersNeuronXService(Service):
    """LMI's handler for Transformers NeuronX, answered by the served model."""


__all__ = ["TransformersNeuronXService"]
