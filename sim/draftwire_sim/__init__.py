"""Latency simulations of draftwire: drives the same controller and scheduler as the real thing."""
