"""Sequences of sprites, of transformed MNIST, and of your own arrays and files."""

from topocaps.data.importing.mapped import MappedSequences
from topocaps.data.importing.read import from_images, read
from topocaps.data.importing.split import Imported, split
from topocaps.data.letter_images import letters
from topocaps.data.mnist_files import digits, mnist
from topocaps.data.moved import MovedDigits, Moves
from topocaps.data.sequences import Batch, Sequences, SequenceSet
from topocaps.data.sprite_images import render, sprites
from topocaps.data.times import at_times
from topocaps.data.transforms import TransformedImages

__all__ = [
    "Batch",
    "Imported",
    "MappedSequences",
    "MovedDigits",
    "Moves",
    "SequenceSet",
    "Sequences",
    "TransformedImages",
    "at_times",
    "digits",
    "from_images",
    "letters",
    "mnist",
    "read",
    "render",
    "split",
    "sprites",
]
