"""Sequences of your own: arrays, data sets, files and folders, read by one function."""

from topocaps.data.own.mapped import MappedSequences
from topocaps.data.own.moving import TRANSFORMATIONS, MovingImages
from topocaps.data.own.own import Own, split
from topocaps.data.own.reading import from_images, read

__all__ = [
    "TRANSFORMATIONS",
    "MappedSequences",
    "MovingImages",
    "Own",
    "from_images",
    "read",
    "split",
]
