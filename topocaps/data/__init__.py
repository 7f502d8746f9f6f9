"""Sequences to learn from: rendered sprites, transformed MNIST, and arrays of your own."""

from topocaps.data.letter_images import letters
from topocaps.data.mnist_files import digits, mnist
from topocaps.data.moved import MovedDigits, Moves
from topocaps.data.own import MappedSequences, Own, from_images, read, split
from topocaps.data.sequences import Batch, Sequences, SequenceSet
from topocaps.data.sprite_images import render, sprites
from topocaps.data.transforms import TransformedImages

__all__ = [
    "Batch",
    "MappedSequences",
    "MovedDigits",
    "Moves",
    "Own",
    "SequenceSet",
    "Sequences",
    "TransformedImages",
    "digits",
    "from_images",
    "letters",
    "mnist",
    "read",
    "render",
    "split",
    "sprites",
]
