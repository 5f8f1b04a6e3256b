"""What users get wrong: exit code 2, the argument and the fix named, nothing written."""

from pathlib import Path

import grpc
import pytest

from draftwire_cloud.loading import LoadedTarget
from loop.harness import serving
from loop.process import Finished, run
from loop.scripted_target import scripted
from tiny.pair import TinyPair
from tiny.vocabulary import token_bytes


def refused(finished: Finished, *said: str) -> None:
    assert finished.code == 2, (finished.code, finished.out, finished.err)
    assert finished.out == ""
    assert "Traceback" not in finished.err
    for words in said:
        assert words in finished.err, finished.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--pair", "qwen2.5-codr"), ("--pair", "qwen2.5-coder")),
        (("--draft-model", "no-such.gguf"), ("--draft-model", "no-such.gguf")),
        (("--max-tokens", "0"), ("--max-tokens", "at least one")),
        (("--max-tokens", "-5"), ("--max-tokens",)),
        (("--max-tokens", "5000000000"), ("--max-tokens", "at most 4294967295")),
        (("--gamma", "0"), ("--gamma", "--mode cloud")),
        (("--gamma", "-3"), ("--gamma", "at least 1")),
        (("--gamma", "many"), ("--gamma",)),
        (("--mode", "sideways"), ("--mode",)),
        (("--stop", ""), ("--stop", "empty")),
        (("--stop", "\udcff"), ("--stop", "UTF-8")),
        (("--system", "\udcff"), ("--system", "UTF-8")),
        (("--temperature", "-1"), ("--temperature", "greedy")),
        (("--temperature", "1e-7"), ("--temperature", "0 for greedy")),
        (("--top-p", "0"), ("--top-p", "0.9")),
        (("--top-k", "-1"), ("--top-k",)),
        (("--top-k", "5000000000"), ("--top-k", "4294967295", "0 to keep all")),
        (("--min-p", "2"), ("--min-p",)),
        (("--seed", "-1"), ("--seed",)),
        (("--temperature", "1e9"), ("--temperature", "at most 1000000")),
        (("--typical-p", "0"), ("--typical-p", "0.9")),
        (("--repetition-penalty", "0"), ("--repetition-penalty", "1.1")),
        (("--presence-penalty", "3"), ("--presence-penalty", "0 for none")),
        (("--frequency-penalty", "nan"), ("--frequency-penalty", "0 for none")),
        (("--logit-bias", "much"), ("--logit-bias", "198:-5")),
        (("--logit-bias", "5:many"), ("--logit-bias",)),
        (("--logit-bias", "5:1", "--logit-bias", "5:2"), ("--logit-bias", "two biases")),
        (("--logit-bias", "5:1000"), ("--logit-bias", "-100 to 100")),
        (("--min-tokens", "9", "--max-tokens", "5"), ("--min-tokens", "--max-tokens 5")),
        (("--bad-word", ""), ("--bad-word", "empty")),
        (("--bad-word", "\udcff"), ("--bad-word", "UTF-8")),
        (("--scheme", "luck"), ("--scheme", "coupled")),
        (("--logprobs", "21"), ("--logprobs", "[0, 20]")),
        (("--json-schema", "no-such.json"), ("--json-schema", "no-such.json")),
        (("--json-schema", "{"), ("--json-schema", "no JSON")),
        (("--json-schema", '{"not": {}}'), ("--json-schema", "not")),
        (("--regex", "("), ("--regex",)),
        (("--regex", "a", "--json-schema", "{}"), ("--regex", "--json-schema already")),
        (("--cloud", "nowhere"), ("--cloud", "HOST:PORT")),
        (("--no-such-option",), ("--no-such-option",)),
    ],
)
async def test_options(options: tuple[str, ...], said: tuple[str, ...], tiny_pair: TinyPair) -> None:
    model = (
        ()
        if {"--pair", "--draft-model"} & set(options)
        else ("--draft-model", str(tiny_pair.drafters["noisy"]))
    )
    refused(await run("draftwire", "generate", "hi", *model, *options), *said)


async def test_too_few_positions_to_compare() -> None:
    refused(await run("draftwire", "doctor", "--exactness", "3"), "--exactness", "at least 9")


async def test_closed_port(tiny_pair: TinyPair) -> None:
    model = str(tiny_pair.drafters["noisy"])
    finished = await run("draftwire", "generate", "hi", "--draft-model", model, "--cloud", "127.0.0.1:1")
    refused(finished, "--cloud", "127.0.0.1:1", "draftwire-cloud serve")


async def test_empty_prompt(tiny_pair: TinyPair) -> None:
    model = str(tiny_pair.drafters["noisy"])
    refused(await run("draftwire", "generate", "", "--draft-model", model), "PROMPT")
    refused(await run("draftwire", "generate", "-", "--draft-model", model), "PROMPT")


async def test_prompt_that_is_no_text(tiny_pair: TinyPair) -> None:
    model = str(tiny_pair.drafters["noisy"])
    refused(await run("draftwire", "generate", "\udcff", "--draft-model", model), "PROMPT", "UTF-8")


async def test_cloud_that_is_another_grpc_service(tiny_pair: TinyPair) -> None:
    server = grpc.aio.server()
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    model = str(tiny_pair.drafters["noisy"])
    try:
        finished = await run("draftwire", "generate", "hi", "--draft-model", model, "--cloud", address)
    finally:
        await server.stop(0)
    refused(finished, "--cloud", address, "not a draftwire service", "draftwire-cloud serve")


async def test_demo_without_tokens() -> None:
    refused(await run("draftwire", "demo", "--max-tokens", "0"), "--max-tokens", "at least one")


@pytest.mark.parametrize("damage", ["truncated", "no gguf", "empty", "tensor missing"])
async def test_corrupt_gguf(damage: str, tiny_pair: TinyPair, tmp_path: Path) -> None:
    whole = tiny_pair.drafters["noisy"].read_bytes()
    data = {
        "truncated": whole[:3000],
        "no gguf": b"hello" * 100,
        "empty": b"",
        "tensor missing": whole[:-5000],
    }
    path = tmp_path / "model.gguf"
    path.write_bytes(data[damage])
    before = set(tmp_path.iterdir())
    refused(await run("draftwire", "generate", "hi", "--draft-model", str(path)), "model.gguf")
    refused(await run("draftwire-cloud", "serve", "--model", str(path), "--port", "0"), "model.gguf")
    assert set(tmp_path.iterdir()) == before


async def test_wrong_model_pair_names_the_first_differing_id(tiny_pair: TinyPair) -> None:
    pieces = list(token_bytes())
    pieces[200] = b"something else"
    loaded, _ = scripted(pieces, [5, 6], prompt_length=1)
    async with serving(loaded) as server:
        finished = await run(
            "draftwire", "generate", "hi", "--cloud", f"127.0.0.1:{server.port}",
            "--draft-model", str(tiny_pair.drafters["noisy"]),
        )  # fmt: skip
    refused(finished, "token 200", "something else", "--pair")


async def test_prompt_longer_than_the_context(loaded: LoadedTarget, tiny_pair: TinyPair) -> None:
    async with serving(loaded) as server:
        finished = await run(
            "draftwire", "generate", "0123456789" * 60, "--cloud", f"127.0.0.1:{server.port}",
            "--draft-model", str(tiny_pair.drafters["noisy"]),
        )  # fmt: skip
    refused(finished, "PROMPT", "512", "Shorten")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"DRAFTWIRE_GAMMA": "x"}, "DRAFTWIRE_GAMMA"),
        ({"DRAFTWIRE_TOP_P": "high"}, "DRAFTWIRE_TOP_P"),
        ({"DRAFTWIRE_STOP": "foo"}, "DRAFTWIRE_STOP"),
    ],
)
async def test_bad_environment_is_named(variables: dict[str, str], said: str) -> None:
    refused(await run("draftwire", "generate", "hi", **variables), said)


async def test_bad_config_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text('top_k = "all"\n')
    refused(await run("draftwire", "generate", "hi", DRAFTWIRE_CONFIG=str(path)), "top_k", "config.toml")
    path.write_text("top_k = \n")
    refused(await run("draftwire", "generate", "hi", DRAFTWIRE_CONFIG=str(path)), "config.toml")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--model", "no-such-model"), ("--model", "no-such-model")),
        (("--dtype", "int3"), ("--dtype",)),
        (("--port", "99999"), ("--port",)),
    ],
)
async def test_operators_options(options: tuple[str, ...], said: tuple[str, ...]) -> None:
    refused(await run("draftwire-cloud", "serve", *options), *said)


async def test_config_shows_values_and_where_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("top_k = 40\ntemperature = 0.5\n")
    finished = await run(
        "draftwire", "config", "--json", DRAFTWIRE_CONFIG=str(path), DRAFTWIRE_TEMPERATURE="0.9"
    )
    seen = finished.json
    assert seen["top_k"] == {"value": 40, "origin": "file"}
    assert seen["temperature"] == {"value": 0.9, "origin": "environment"}
    assert seen["gamma"] == {"value": "auto", "origin": "default"}
