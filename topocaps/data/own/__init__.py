"""Sequences of your own: arrays, data sets, files and folders, read by one function."""

from topocaps.data.own.mapped import MappedSequences
from topocaps.data.own.moving import TRANSFORMATIONS, MovingImages
from topocaps.data.own.own import Own, split
from topocaps.data.own.reading import from_images, read
from topocaps.data.own.shifted import ShiftedSequences, room_to_shift

__all__ = [
    "TRANSFORMATIONS",
    "MappedSequences",
    "MovingImages",
    "Own",
    "ShiftedSequences",
    "from_images",
    "read",
    "room_to_shift",
    "split",
]
