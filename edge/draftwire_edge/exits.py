"""Errors -> a line on stderr and an exit code, the laptop command's one place for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from draftwire_models.errors import DownloadError, ModelError
from draftwire_protocol.errors import (
    ContextOverflowError,
    DraftwireError,
    ModelMismatchError,
    UserInputError,
)

#: What the user can mend by typing something else; a message that breaks the protocol is not among it.
_USAGE_ERRORS = (UserInputError, ModelMismatchError, ContextOverflowError)
USAGE_EXIT = 2
FAILURE_EXIT = 1
INTERRUPT_EXIT = 130


@contextmanager
def errors_explained() -> Iterator[None]:
    """Exit 2 where the user can fix what was typed, 1 where something failed, 130 after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise typer.Exit(INTERRUPT_EXIT) from error
    except (DraftwireError, ModelError) as error:
        usage = isinstance(error, _USAGE_ERRORS) or (
            isinstance(error, ModelError) and not isinstance(error, DownloadError)
        )
        Console(stderr=True, markup=False, highlight=False, soft_wrap=True).print(f"Error: {error}")
        raise typer.Exit(USAGE_EXIT if usage else FAILURE_EXIT) from error
