"""Updates of the parameters of a stack: by autograd, or fused with the gradients of weights."""
