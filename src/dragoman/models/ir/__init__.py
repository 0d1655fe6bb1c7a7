"""Models as OpenVINO's intermediate representation: exported graphs, brought into the form that the engine runs."""
