"""Messages survive the wire, stay small, and broken ones are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwire_protocol import codec
from draftwire_protocol import messages as m
from draftwire_protocol._pb import speculation_pb2 as pb
from draftwire_protocol.commit import FinishReason
from draftwire_protocol.errors import DraftwireError, ProtocolError, error_from_status
from draftwire_protocol.grammar_spec import GrammarSpec
from draftwire_protocol.params import MIN_TEMPERATURE, SamplingParams
from draftwire_protocol.proposal import Proposal

UINT = st.integers(0, 2**32 - 1)
IDS = st.lists(UINT, max_size=20).map(tuple)
PARAMS = st.builds(
    SamplingParams,
    st.just(0.0) | st.floats(MIN_TEMPERATURE, 100),
    UINT,
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.integers(0, 2**64 - 1),
    st.floats(0.01, 1),
    st.floats(0.1, 10),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.dictionaries(UINT, st.floats(-100, 100), max_size=3).map(lambda biases: tuple(biases.items())),
    UINT,
    st.lists(st.lists(UINT, min_size=1, max_size=3).map(tuple), max_size=3).map(tuple),
)
#: A lone backslash and a flag (?x) are refused before they could travel.
REGULAR = st.text(st.characters(exclude_characters="\\?", exclude_categories=["Cs"]), min_size=1)
GRAMMARS = st.builds(GrammarSpec, st.just("regex"), REGULAR) | st.just(
    GrammarSpec("json_schema", '{"type": "integer"}')
)
PROPOSALS = st.lists(st.builds(Proposal, IDS, IDS), max_size=3).map(tuple)
EDGE = st.one_of(
    st.builds(m.Draft, UINT, UINT, IDS, PROPOSALS),
    st.builds(lambda ids: m.Draft(1, 2, ids, (), bytes(one % 256 for one in ids)), IDS),
    st.builds(m.SetMode, st.sampled_from(m.Mode)),
    st.builds(m.Cancel),
    st.builds(
        m.Open,
        st.text(),
        IDS,
        PARAMS,
        UINT,
        st.sampled_from(m.Mode),
        IDS,
        st.lists(st.text()).map(tuple),
        st.sampled_from(m.Scheme),
        top_logprobs=st.none() | UINT,
        grammar=st.none() | GRAMMARS,
    ),
)
FLOAT32 = st.floats(width=32, allow_nan=False)
LOGPROBS = st.lists(
    st.builds(m.TokenLogprobs, FLOAT32, st.lists(st.tuples(UINT, FLOAT32), max_size=3).map(tuple)), max_size=3
).map(tuple)
TIMING = st.builds(m.ServerTiming, UINT, UINT, UINT, UINT)
USAGE = st.builds(m.Usage, UINT, UINT, UINT, UINT, UINT)
CLOUD = st.one_of(
    st.builds(m.Opened, UINT, UINT),
    st.builds(
        m.Verdict, UINT, UINT, UINT, IDS, st.sampled_from(m.Mode), TIMING, LOGPROBS, UINT, UINT, st.booleans()
    ),
    st.builds(m.Finished, st.sampled_from(FinishReason), USAGE),
)
CARD = st.builds(
    m.ModelCard, st.text(), st.text(), UINT, UINT, IDS, st.none() | UINT, IDS, st.binary(), st.binary(), UINT,
    st.text(), st.booleans(), model_id=st.binary(), eos_id=st.none() | UINT,
    chat_template=st.none() | st.text(min_size=1), pieces=st.lists(st.binary()).map(tuple),
)  # fmt: skip


@given(EDGE)
def test_edge_messages_survive_the_wire(message: m.EdgeMessage) -> None:
    wire = codec.encode_edge(message).SerializeToString()
    decoded = codec.decode_edge(pb.DecodeRequest.FromString(wire))
    assert decoded == message
    if isinstance(message, m.Draft):
        assert isinstance(decoded, m.Draft)
        assert decoded.chances == message.chances


@given(CLOUD)
def test_cloud_messages_survive_the_wire(message: m.CloudMessage) -> None:
    wire = codec.encode_cloud(message).SerializeToString()
    assert codec.decode_cloud(pb.DecodeResponse.FromString(wire)) == message


@given(CARD)
def test_model_cards_survive_the_wire(card: m.ModelCard) -> None:
    wire = codec.encode_card(card).SerializeToString()
    assert codec.decode_card(pb.GetModelResponse.FromString(wire)) == card


@given(st.integers(0, 500), st.integers(0, 100_000), st.lists(st.integers(0, 151_936), max_size=64))
def test_drafts_and_verdicts_keep_to_the_byte_budget(epoch: int, start: int, ids: list[int]) -> None:
    draft = codec.encode_edge(m.Draft(epoch, start, tuple(ids), (), bytes([200] * len(ids)))).ByteSize()
    timing = m.ServerTiming(5_000, 900_000, 3_000, 64)
    verdict = m.Verdict(epoch, start, len(ids), (151_935,), m.Mode.LOCKSTEP, timing, (), len(ids), 32, True)
    assert draft <= 6 * len(ids) + 40
    assert codec.encode_cloud(verdict).ByteSize() <= 40


@pytest.mark.parametrize(
    "request_",
    [
        pb.DecodeRequest(),
        pb.DecodeRequest(set_mode=pb.SetMode()),
        pb.DecodeRequest(open=pb.Open(mode=pb.MODE_LOCKSTEP)),
        pb.DecodeRequest(open=pb.Open(mode=pb.MODE_LOCKSTEP, scheme=pb.Scheme.ValueType(99))),
    ],
)
def test_requests_with_something_missing_are_refused(request_: pb.DecodeRequest) -> None:
    with pytest.raises(DraftwireError):
        codec.decode_edge(request_)


@pytest.mark.parametrize(
    "proposals",
    [
        [pb.Proposal()] * 65,
        [pb.Proposal(ids=range(65), weights=[1])],
        [pb.Proposal(ids=[1], weights=[1] * 65)],
    ],
)
def test_oversized_proposals_are_refused_before_they_are_built(proposals: list[pb.Proposal]) -> None:
    with pytest.raises(ProtocolError, match="proposal"):
        codec.decode_edge(pb.DecodeRequest(draft=pb.Draft(proposals=proposals)))


def test_chances_of_other_tokens_than_were_drafted_are_refused() -> None:
    with pytest.raises(ProtocolError, match="2 chances for 1 drafted"):
        codec.decode_edge(pb.DecodeRequest(draft=pb.Draft(ids=[3], chances=b"\x01\x02")))


def test_answers_without_a_message_are_refused() -> None:
    with pytest.raises(ProtocolError):
        codec.decode_cloud(pb.DecodeResponse())


def _tree(kind: type[DraftwireError]) -> list[type[DraftwireError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in _tree(child))]


def test_statuses_come_back_as_the_error_they_were_made_of() -> None:
    import grpc

    for kind in _tree(DraftwireError):
        assert kind.status in grpc.StatusCode.__members__
        back = error_from_status(kind.status, "why")
        assert (back.status, str(back)) == (kind.status, "why")


def test_a_status_nobody_sends_on_purpose_is_a_plain_error() -> None:
    assert type(error_from_status("NOT_FOUND", "why")) is DraftwireError
