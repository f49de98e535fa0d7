"""Helpers of several rooms' tests: `from helpers import local_texts`."""
