"""Recipes, the runs that are made of them, and what is measured, drawn and reported of a run."""
