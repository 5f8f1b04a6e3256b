"""The exception tree and its one mapping to gRPC status codes.

DraftwireError
├── UserInputError (also ValueError)  what a user typed; names the argument and the fix   exit 2
│   └── NothingToWriteError           biases, bans and constraints leave no token to write
├── ProtocolError                     a message that breaks the protocol                  INVALID_ARGUMENT
├── StaleDraftError                   a draft whose base is not the committed text        ABORTED
├── ModelMismatchError                the two models do not belong together               FAILED_PRECONDITION
├── ContextOverflowError              prompt and output do not fit the context            OUT_OF_RANGE
├── OverloadedError                   no room for one more session                        RESOURCE_EXHAUSTED
├── CloudUnavailableError             no connection, or it broke                          UNAVAILABLE
├── BrokenLogitsError                 a model's logits are not numbers                    INTERNAL
└── DrafterError                      the draft model cannot be loaded or failed
"""

from __future__ import annotations


class DraftwireError(Exception):
    """Base of every error draftwire raises on purpose."""

    status = "INTERNAL"


class UserInputError(DraftwireError, ValueError):
    """Something a user typed is wrong.

    Args:
        argument: the option or argument as the user knows it, e.g. ``--gamma``.
        problem: what is wrong with it.
        fix: what to type instead.
    """

    status = "INVALID_ARGUMENT"

    def __init__(self, argument: str, problem: str, fix: str) -> None:
        super().__init__(f"{argument}: {problem}. {fix}")
        self.argument = argument
        self.problem = problem
        self.fix = fix


class NothingToWriteError(UserInputError):
    """What was asked for leaves no token to write at this place."""


class ProtocolError(DraftwireError):
    """A message breaks the protocol: an id out of range, a second Open, no mode."""

    status = "INVALID_ARGUMENT"


class StaleDraftError(DraftwireError):
    """A draft starts somewhere else than the committed text ends."""

    status = "ABORTED"


class ModelMismatchError(DraftwireError):
    """Draft and target model do not share a vocabulary."""

    status = "FAILED_PRECONDITION"


class ContextOverflowError(DraftwireError):
    """The prompt leaves no room for one output token."""

    status = "OUT_OF_RANGE"


class OverloadedError(DraftwireError):
    """The cloud has no room for one more session now."""

    status = "RESOURCE_EXHAUSTED"


class CloudUnavailableError(DraftwireError):
    """The cloud cannot be reached, or the connection broke."""

    status = "UNAVAILABLE"


class BrokenLogitsError(DraftwireError):
    """A model's logits are not numbers, or leave nothing to choose from."""


class DrafterError(DraftwireError):
    """The draft model cannot be loaded, or failed while drafting."""

    status = "FAILED_PRECONDITION"


_ERROR_BY_STATUS: dict[str, type[DraftwireError]] = {
    "INVALID_ARGUMENT": ProtocolError,
    "ABORTED": StaleDraftError,
    "FAILED_PRECONDITION": ModelMismatchError,
    "OUT_OF_RANGE": ContextOverflowError,
    "RESOURCE_EXHAUSTED": OverloadedError,
    "UNAVAILABLE": CloudUnavailableError,
}


def error_from_status(status: str, message: str) -> DraftwireError:
    """The exception the edge raises for a status the cloud answered with.

    Args:
        status: name of a ``grpc.StatusCode``, e.g. ``"OUT_OF_RANGE"``.
        message: the status' details.
    """
    return _ERROR_BY_STATUS.get(status, DraftwireError)(message)
