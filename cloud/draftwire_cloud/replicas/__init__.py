"""Several copies of one target behind one address."""
