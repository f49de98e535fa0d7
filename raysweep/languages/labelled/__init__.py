"""Labelled texts as downstream tasks of a language: GLUE, and any table of texts with a column of labels.

The texts are written in the language's own words, once, and kept in the cache folder.  They are no part of
the language: its fingerprint does not depend on them.
"""
