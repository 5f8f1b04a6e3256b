"""Shared by all tests: settings that must be in place before heavy libraries are imported."""

import os
import signal

from hypothesis import settings

# Before llama.cpp or torch start a thread: a spinning OpenMP thread starves its neighbours.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# A shell that starts us in the background has interrupts ignored, and so would the commands under test.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Nobody's own configuration may leak into a test.
os.environ["DRAFTWIRE_CONFIG"] = os.devnull

# The machine is shared: a slow example says nothing about the code.
settings.register_profile("draftwire", deadline=None)
settings.load_profile("draftwire")
