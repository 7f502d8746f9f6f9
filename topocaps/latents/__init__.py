"""Latent variables organised in capsules: the matrix W, its learned forms, and the priors."""
