"""Theory to hold measurements against: Bartlett's identity, and descent along a valley of equal loss."""
