"""Run the command ``topocaps`` as ``python -m topocaps``."""

from topocaps.cli import main

main()
