"""Adapters to other libraries, each imported when it is used, and the models that ship."""
