"""Collects the figures of one generation. Times come in as seconds of the session's clock."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from draftwire_edge.branch import Judged
from draftwire_edge.generation import SourceFigures, Timings
from draftwire_protocol.messages import Usage, Verdict


class Recorder:
    """Sums over rounds; ``timings`` turns them into the published figures.

    Args:
        started: when the user asked, in seconds.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._token_times: list[float] = []
        self._accepted_per_pos: list[int] = []
        self._num_drafts = self._num_draft_tokens = self._num_accepted = 0
        self._rounds = self._verified = 0
        self._verify_s = self._cloud_other_s = self._edge_other_s = 0.0
        self._draft_s = self._draft_bytes = 0.0
        self._drafted = 0
        self._round_trips_s: list[float] = []
        self._by_source: dict[str, SourceFigures] = {}
        self.bytes_up = self.bytes_down = 0

    def tokens(self, count: int, now: float) -> None:
        """``count`` tokens arrived at ``now``."""
        self._token_times.extend([now] * count)

    def round_trip(self, seconds: float) -> None:
        """One message and its answer took this long besides the server's own time."""
        self._round_trips_s.append(max(0.0, seconds))

    def drafted(self, count: int, seconds: float, model_seconds: float) -> None:
        """A block was drafted in ``seconds``, ``model_seconds`` of them inside the model."""
        self._drafted += count
        self._draft_s += seconds
        self._edge_other_s += seconds - model_seconds

    def judged(self, guesses: Sequence[Judged]) -> None:
        """The text has reached these guesses, or passed them."""
        for one in guesses:
            before = self._by_source.get(one.guess.source, SourceFigures(0, 0))
            accepted = before.num_accepted + one.accepted
            self._by_source[one.guess.source] = SourceFigures(before.num_judged + 1, accepted)

    def sent_draft(self, num_bytes: int) -> None:
        """A Draft message of this size went out."""
        self._draft_bytes += num_bytes

    def edge_work(self, seconds: float) -> None:
        """Edge work that is neither drafting nor waiting."""
        self._edge_other_s += seconds

    def verdict(self, verdict: Verdict, drafted: int, *, read_prompt: bool) -> None:
        """A verdict came in.

        Args:
            verdict: the cloud's answer.
            drafted: tokens it judged, counted after truncation.
            read_prompt: whether its forward pass read the prompt too, and so says nothing of verifying.
        """
        self._rounds += 1
        if not read_prompt:
            self._verified += 1
            self._verify_s += verdict.timing.forward_us / 1e6
        self._cloud_other_s += verdict.timing.other_us / 1e6
        if not drafted:
            return
        self._num_drafts += 1
        self._num_draft_tokens += drafted
        self._num_accepted += verdict.num_accepted
        missing = drafted - len(self._accepted_per_pos)
        self._accepted_per_pos.extend([0] * max(0, missing))
        for position in range(verdict.num_accepted):
            self._accepted_per_pos[position] += 1

    def usage(self, prompt_tokens: int) -> Usage:
        """Tokens used over all streams of this generation; every verdict was one forward pass."""
        return Usage(
            prompt_tokens, len(self._token_times), self._rounds, self._num_draft_tokens, self._num_accepted
        )

    def timings(self) -> Timings:
        """The published figures."""
        return Timings(
            ttft_ms=1e3 * (self._token_times[0] - self._started) if self._token_times else 0.0,
            tpot_ms=time_per_output_token_ms(self._token_times),
            rtt_ms=1e3 * median(self._round_trips_s) if self._round_trips_s else 0.0,
            draft_ms_per_token=_ratio(1e3 * self._draft_s, self._drafted),
            verify_ms=_ratio(1e3 * self._verify_s, self._verified),
            num_drafts=self._num_drafts,
            num_draft_tokens=self._num_draft_tokens,
            num_accepted_tokens=self._num_accepted,
            num_accepted_tokens_per_pos=tuple(self._accepted_per_pos),
            bytes_up=self.bytes_up,
            bytes_down=self.bytes_down,
            target_passes=self._rounds,
            edge_overhead_ms=_ratio(1e3 * self._edge_other_s, self._rounds),
            cloud_overhead_ms=_ratio(1e3 * self._cloud_other_s, self._rounds),
            draft_bytes_per_token=_ratio(self._draft_bytes, self._drafted),
            num_guessed_tokens=self._drafted,
            by_source=dict(self._by_source),
        )


def time_per_output_token_ms(token_times: Sequence[float]) -> float | None:
    """TPOT: time after the first token / tokens after it; None with fewer than two tokens.

    Args:
        token_times: when each token arrived, in seconds.
    """
    if len(token_times) < 2:
        return None
    return 1e3 * (token_times[-1] - token_times[0]) / (len(token_times) - 1)


def _ratio(numerator: float, denominator: float) -> float:
    """0 when there is nothing to divide by."""
    return numerator / denominator if denominator else 0.0
