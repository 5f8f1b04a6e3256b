"""The laptop side: draft model, controller, session, command line."""
