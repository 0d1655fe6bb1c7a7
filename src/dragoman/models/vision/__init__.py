"""The parts of models that see: how pictures are cut up for a tower, and the towers themselves."""
