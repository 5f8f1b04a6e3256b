"""What is compared."""

from __future__ import annotations

from draftwire_protocol.errors import UserInputError

#: The service as it is.
BATCHED = "batched"
#: The same with one session in a forward pass.
UNBATCHED = "unbatched"
#: Plain streaming from the service as it is, without drafts.
CLOUD = "cloud"
#: vLLM with n-gram drafts on the same weights, where it is installed.
VLLM = "vllm"
ARMS = (BATCHED, UNBATCHED, CLOUD, VLLM)
#: Arm -> the arm whose service it uses.
SERVED_BY = {BATCHED: BATCHED, UNBATCHED: UNBATCHED, CLOUD: BATCHED}


def chosen(text: str | None) -> list[str]:
    """The arms that a list names, in the order of ``ARMS``; all where there is none.

    Raises:
        UserInputError: an unknown one, or none that our service serves.
    """
    if text is None:
        return list(ARMS)
    named = [one.strip() for one in text.split(",")]
    unknown = [one for one in named if one not in ARMS]
    if unknown or not set(named) & set(SERVED_BY):
        problem = f"{unknown[0]!r} is none" if unknown else f"{text!r} has nothing of ours"
        raise UserInputError("--arms", problem, f"Choose among {', '.join(ARMS)}")
    return [arm for arm in ARMS if arm in named]
