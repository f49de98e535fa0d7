"""Parts that compiled kernels share: vectors, scalars and Philox's rounds.

Importing any of them imports numba, so it is imported where it is first used.
"""
