"""Curvature of the loss on a pool: products, eigenvalues, sharpness and scaled measures."""
