"""Sequences to learn from: rendered sprites, and arrays of your own."""

from topocaps.data.sequences import Batch, Sequences
from topocaps.data.sprites import render, sprites

__all__ = ["Batch", "Sequences", "render", "sprites"]
