"""``python -m topocaps`` is the command ``topocaps``."""

from topocaps.cli import main

main()
