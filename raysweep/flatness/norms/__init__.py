"""Norms of the gradient of every input, of any model: ghost norms by hooks, and a slower fallback."""
