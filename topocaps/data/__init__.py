"""Sequences to learn from: rendered sprites, transformed MNIST, and arrays of your own."""

from topocaps.data.mnist import digits, mnist
from topocaps.data.sequences import Batch, Sequences, SequenceSet
from topocaps.data.sprites import render, sprites
from topocaps.data.transforms import TransformedImages

__all__ = [
    "Batch",
    "SequenceSet",
    "Sequences",
    "TransformedImages",
    "digits",
    "mnist",
    "render",
    "sprites",
]
