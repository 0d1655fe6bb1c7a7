"""Pictures of requests: from a data URL or an address on the network to pixels."""

from dragoman.pictures.limits import PictureFault, PictureLimits
from dragoman.pictures.loader import PictureLoader, PictureSource

__all__ = ["PictureFault", "PictureLimits", "PictureLoader", "PictureSource"]
