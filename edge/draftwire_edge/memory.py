"""What the controller learnt of a pair of models, kept from one start to the next."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path

import platformdirs

from draftwire_edge.controller import Controller


class ControllerMemory:
    """One file a pair of models; a file that is missing or damaged means that nothing is known.

    Args:
        model_id: of the target.
        drafter: name of the draft model.
        folder: where the files are; None for the platform's state folder.
    """

    def __init__(self, model_id: bytes, drafter: str, folder: Path | None = None) -> None:
        folder = folder or Path(platformdirs.user_state_dir("draftwire")) / "controller"
        key = hashlib.sha256(model_id + b"\0" + drafter.encode()).hexdigest()[:32]
        self.path = folder / f"{key}.json"

    def recall(self, controller: Controller) -> None:
        """Give the controller what is known."""
        blank = controller.state()
        try:
            controller.restore(json.loads(self.path.read_text(encoding="utf-8")))
        except Exception:  # noqa: BLE001  # whatever is in a file, it must not stop a text
            controller.restore(blank, weight=1.0)

    def keep(self, controller: Controller) -> None:
        """Write down what the controller knows; a disk that cannot take it costs nothing but the memory."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = self.path.with_suffix(f".{os.getpid()}.part")
            unfinished.write_text(json.dumps(controller.state()), encoding="utf-8")
            unfinished.replace(self.path)
