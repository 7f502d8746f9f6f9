"""The papers' recipes, tables and claims, and the page of results."""
