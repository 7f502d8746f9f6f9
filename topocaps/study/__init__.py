"""Recipes, runs, and the evaluation, figures and report of a run."""
