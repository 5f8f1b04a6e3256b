"""Dataclass <-> protobuf, in this one place.

Decoding checks what the wire can get wrong (a missing field, an enum from the future) and raises
ProtocolError; whether ids and positions make sense is for the session to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import ProtocolError
from draftwire_protocol.fingerprint import CHUNK
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.messages import (
    MAX_DRAFT_TOKENS,
    Cancel,
    CloudMessage,
    Draft,
    EdgeMessage,
    Finished,
    Mode,
    ModelCard,
    Open,
    Opened,
    Scheme,
    ServerTiming,
    SetMode,
    TokenLogprobs,
    Usage,
    Verdict,
)
from draftwire_protocol.params import SamplingParams
from draftwire_protocol.proposal import MAX_PROPOSAL_IDS, Proposal

_MODE = {
    Mode.LOCKSTEP: pb.MODE_LOCKSTEP,
    Mode.CLOUD: pb.MODE_CLOUD,
    Mode.PIPELINED: pb.MODE_PIPELINED,
    Mode.DUPLEX: pb.MODE_DUPLEX,
}
_SCHEME = {
    Scheme.COUPLED: pb.SCHEME_COUPLED,
    Scheme.REJECTION: pb.SCHEME_REJECTION,
    Scheme.BLOCK: pb.SCHEME_BLOCK,
}
_REASON = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.CANCELLED: pb.FINISH_REASON_CANCELLED,
}

E = TypeVar("E", bound=Enum)


def _known(table: Mapping[E, int], number: int, what: str) -> E:
    """The member with this wire number."""
    for member, value in table.items():
        if value == number:
            return member
    raise ProtocolError(f"{what} {number} is not known here; do both ends run the same version?")


def encode_edge(message: EdgeMessage) -> pb.DecodeRequest:
    """Any message the edge sends on a Decode stream."""
    match message:
        case Draft():
            return pb.DecodeRequest(draft=_encode_draft(message))
        case Open():
            return pb.DecodeRequest(open=_encode_open(message))
        case SetMode():
            return pb.DecodeRequest(set_mode=pb.SetMode(mode=_MODE[message.mode]))
        case Cancel():
            return pb.DecodeRequest(cancel=pb.Cancel())


def decode_edge(request: pb.DecodeRequest) -> EdgeMessage:
    """Inverse of ``encode_edge``.

    Raises:
        ProtocolError: no message inside, or a value out of range.
    """
    match request.WhichOneof("message"):
        case "draft":
            return _decode_draft(request.draft)
        case "open":
            return _decode_open(request.open)
        case "set_mode":
            return SetMode(_known(_MODE, request.set_mode.mode, "mode"))
        case "cancel":
            return Cancel()
        case _:
            raise ProtocolError("a request without a message; do both ends run the same version?")


def _encode_draft(message: Draft) -> pb.Draft:
    proposals = [pb.Proposal(ids=one.ids, weights=one.weights) for one in message.proposals]
    return pb.Draft(
        epoch=message.epoch,
        start=message.start,
        ids=message.ids,
        proposals=proposals,
        chances=message.chances,
    )


def _decode_draft(wire: pb.Draft) -> Draft:
    # Before anything is built from it: a message may hold millions.
    if len(wire.proposals) > MAX_DRAFT_TOKENS:
        raise ProtocolError(f"{len(wire.proposals)} proposals; at most {MAX_DRAFT_TOKENS}")
    if any(max(len(one.ids), len(one.weights)) > MAX_PROPOSAL_IDS for one in wire.proposals):
        raise ProtocolError(f"a proposal of more than {MAX_PROPOSAL_IDS} ids")
    proposals = tuple(Proposal(tuple(one.ids), tuple(one.weights)) for one in wire.proposals)
    if wire.chances and len(wire.chances) != len(wire.ids):
        raise ProtocolError(f"{len(wire.chances)} chances for {len(wire.ids)} drafted tokens")
    return Draft(wire.epoch, wire.start, tuple(wire.ids), proposals, wire.chances)


def _encode_open(message: Open) -> pb.Open:
    return pb.Open(
        session_id=message.session_id,
        prompt_ids=message.prompt_ids,
        committed_ids=message.committed_ids,
        sampling=_encode_sampling(message.sampling),
        max_tokens=message.max_tokens,
        stop=message.stop,
        mode=_MODE[message.mode],
        scheme=_SCHEME[message.scheme],
        model_id=message.model_id,
        top_logprobs=message.top_logprobs,
        grammar=_encode_grammar(message.grammar),
    )


def _encode_sampling(params: SamplingParams) -> pb.Sampling:
    return pb.Sampling(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        seed=params.seed,
        typical_p=params.typical_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        logit_bias=[pb.LogitBias(id=token, bias=bias) for token, bias in params.logit_bias],
        min_tokens=params.min_tokens,
        bad_words=[pb.BadWord(ids=word) for word in params.bad_words],
    )


def _decode_open(message: pb.Open) -> Open:
    return Open(
        session_id=message.session_id,
        prompt_ids=tuple(message.prompt_ids),
        committed_ids=tuple(message.committed_ids),
        sampling=_decode_sampling(message.sampling),
        max_tokens=message.max_tokens,
        stop=tuple(message.stop),
        mode=_known(_MODE, message.mode, "mode"),
        scheme=_known(_SCHEME, message.scheme, "scheme"),
        model_id=message.model_id,
        top_logprobs=message.top_logprobs if message.HasField("top_logprobs") else None,
        grammar=_decode_grammar(message.grammar),
    )


def _encode_grammar(spec: GrammarSpec | None) -> pb.Grammar | None:
    return None if spec is None else pb.Grammar(**{spec.kind: spec.text})


def _decode_grammar(wire: pb.Grammar) -> GrammarSpec | None:
    match wire.WhichOneof("kind"):
        case "json_schema":
            return GrammarSpec("json_schema", wire.json_schema)
        case "regex":
            return GrammarSpec("regex", wire.regex)
        case _:
            return None


def _decode_sampling(wire: pb.Sampling) -> SamplingParams:
    return SamplingParams(
        temperature=wire.temperature,
        top_k=wire.top_k,
        top_p=wire.top_p,
        min_p=wire.min_p,
        seed=wire.seed,
        typical_p=wire.typical_p,
        repetition_penalty=wire.repetition_penalty,
        presence_penalty=wire.presence_penalty,
        frequency_penalty=wire.frequency_penalty,
        logit_bias=tuple((one.id, one.bias) for one in wire.logit_bias),
        min_tokens=wire.min_tokens,
        bad_words=tuple(tuple(one.ids) for one in wire.bad_words),
    )


def encode_cloud(message: CloudMessage) -> pb.DecodeResponse:
    """Any message the cloud sends on a Decode stream."""
    match message:
        case Verdict():
            return pb.DecodeResponse(verdict=_encode_verdict(message))
        case Opened():
            return pb.DecodeResponse(opened=pb.Opened(cached=message.cached, prefill_us=message.prefill_us))
        case Finished():
            usage = pb.Usage(
                prompt_tokens=message.usage.prompt_tokens,
                completion_tokens=message.usage.completion_tokens,
                target_passes=message.usage.target_passes,
                num_draft_tokens=message.usage.num_draft_tokens,
                num_accepted_tokens=message.usage.num_accepted_tokens,
            )
            return pb.DecodeResponse(finished=pb.Finished(reason=_REASON[message.reason], usage=usage))


def decode_cloud(response: pb.DecodeResponse) -> CloudMessage:
    """Inverse of ``encode_cloud``.

    Raises:
        ProtocolError: no message inside, or a value out of range.
    """
    match response.WhichOneof("message"):
        case "verdict":
            return _decode_verdict(response.verdict)
        case "opened":
            return Opened(response.opened.cached, response.opened.prefill_us)
        case "finished":
            wire = response.finished.usage
            usage = Usage(
                wire.prompt_tokens,
                wire.completion_tokens,
                wire.target_passes,
                wire.num_draft_tokens,
                wire.num_accepted_tokens,
            )
            return Finished(_known(_REASON, response.finished.reason, "finish reason"), usage)
        case _:
            raise ProtocolError("an answer without a message; do both ends run the same version?")


def _encode_verdict(message: Verdict) -> pb.Verdict:
    timing = message.timing
    return pb.Verdict(
        epoch=message.epoch,
        start=message.start,
        num_accepted=message.num_accepted,
        ids=message.ids,
        mode=_MODE[message.mode],
        timing=pb.ServerTiming(
            queue_us=timing.queue_us,
            forward_us=timing.forward_us,
            other_us=timing.other_us,
            batch_size=timing.batch_size,
        ),
        logprobs=[
            pb.TokenLogprobs(
                logprob=one.logprob,
                top_ids=[token for token, _ in one.top],
                top_logprobs=[value for _, value in one.top],
            )
            for one in message.logprobs
        ],
        num_drafted=message.num_drafted,
        gamma_budget=message.gamma_budget,
        fill_refused=message.fill_refused,
    )


def _decode_verdict(wire: pb.Verdict) -> Verdict:
    timing = wire.timing
    return Verdict(
        epoch=wire.epoch,
        start=wire.start,
        num_accepted=wire.num_accepted,
        ids=tuple(wire.ids),
        mode=_known(_MODE, wire.mode, "mode"),
        timing=ServerTiming(timing.queue_us, timing.forward_us, timing.other_us, timing.batch_size),
        logprobs=tuple(
            TokenLogprobs(one.logprob, tuple(zip(one.top_ids, one.top_logprobs, strict=False)))
            for one in wire.logprobs
        ),
        num_drafted=wire.num_drafted,
        gamma_budget=wire.gamma_budget,
        fill_refused=wire.fill_refused,
    )


def encode_card(card: ModelCard) -> pb.GetModelResponse:
    """The model card."""
    return pb.GetModelResponse(
        name=card.name,
        architecture=card.architecture,
        n_vocab=card.n_vocab,
        n_tokens=card.n_tokens,
        eos_ids=card.eos_ids,
        bos_id=card.bos_id,
        special_ids=card.special_ids,
        piece_hashes=card.piece_hashes,
        piece_chunk=CHUNK,
        template_hash=card.template_hash,
        chat_template=card.chat_template or "",
        pieces=card.pieces,
        context_length=card.context_length,
        max_draft_tokens=card.max_draft_tokens,
        schemes=[_SCHEME[scheme] for scheme in card.schemes],
        modes=[_MODE[mode] for mode in card.modes],
        dtype=card.dtype,
        exact_shapes=card.exact_shapes,
        model_id=card.model_id,
        eos_id=card.eos_id,
    )


def decode_card(wire: pb.GetModelResponse) -> ModelCard:
    """Inverse of ``encode_card``."""
    return ModelCard(
        name=wire.name,
        architecture=wire.architecture,
        n_vocab=wire.n_vocab,
        n_tokens=wire.n_tokens,
        eos_ids=tuple(wire.eos_ids),
        bos_id=wire.bos_id if wire.HasField("bos_id") else None,
        special_ids=tuple(wire.special_ids),
        piece_hashes=wire.piece_hashes,
        template_hash=wire.template_hash,
        context_length=wire.context_length,
        dtype=wire.dtype,
        exact_shapes=wire.exact_shapes,
        model_id=wire.model_id,
        eos_id=wire.eos_id if wire.HasField("eos_id") else None,
        max_draft_tokens=wire.max_draft_tokens,
        schemes=tuple(_known(_SCHEME, number, "scheme") for number in wire.schemes),
        modes=tuple(_known(_MODE, number, "mode") for number in wire.modes),
        chat_template=wire.chat_template or None,
        pieces=tuple(wire.pieces),
    )
