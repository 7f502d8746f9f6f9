"""Latent variables organised in capsules: the matrix W, Student-t variables, motions, masks."""
