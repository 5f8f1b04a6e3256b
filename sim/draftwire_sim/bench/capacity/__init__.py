"""How many edges one cloud serves at once: scripted edges against a real service."""
