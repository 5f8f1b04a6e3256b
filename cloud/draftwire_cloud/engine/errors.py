"""What can go wrong inside the engine.

EngineError
├── OutOfSlotsError        no room for more keys and values: park or refuse a session
├── ContextOverflowError   a session would grow past its slot or past the model's context
├── UnsupportedModelError  the packed path cannot serve this model; the message says why
└── LostRankError          a part of a split target is gone: nothing can be computed any more
"""

from draftwire_protocol import errors
from draftwire_protocol.errors import DraftwireError


class EngineError(DraftwireError):
    """Base of every error the engine raises on purpose."""


class OutOfSlotsError(EngineError, errors.OverloadedError):
    """The byte budget for keys and values is used up."""


class ContextOverflowError(EngineError, errors.ContextOverflowError):
    """The new tokens do not fit behind the ones a slot already holds."""


class UnsupportedModelError(EngineError):
    """The model cannot be verified in a packed row, or not correctly."""


class LostRankError(EngineError):
    """Another rank of a split target ended or fell out of step; only a restart helps."""
