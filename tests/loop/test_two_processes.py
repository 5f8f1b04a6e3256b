"""The installed commands in processes of their own, over real sockets."""

import asyncio
import json

import pytest

from loop.process import run, service, start, start_service
from tiny.config import NEVER_ENDS, TinyConfig
from tiny.pair import TinyPair, make_tiny_pair


@pytest.fixture(scope="module")
def endless_pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    return make_tiny_pair(tmp_path_factory.mktemp("endless"), TinyConfig(eos_lift=NEVER_ENDS))


def generate(pair: TinyPair, address: str, *more: str, drafter: str = "noisy") -> tuple[str, ...]:
    return (
        "generate", "Tell me 10 things", "--cloud", address,
        "--draft-model", str(pair.drafters[drafter]), *more,
    )  # fmt: skip


async def test_generate_json_reports_everything_and_equals_cloud_alone(endless_pair: TinyPair) -> None:
    options = ("--temperature", "0.8", "--top-p", "0.9", "--seed", "7", "--max-tokens", "60", "--json")
    async with service(endless_pair.target_folder) as cloud:
        alone = await run("draftwire", *generate(endless_pair, cloud.address, *options, "--mode", "cloud"))
        lockstep = (*options, "--gamma", "3", "--mode", "lockstep")
        together = await run("draftwire", *generate(endless_pair, cloud.address, *lockstep))
        ngram = await run("draftwire", *generate(endless_pair, cloud.address, *options, "--drafter", "ngram"))
        assert await cloud.stop() == 0
    for finished in (alone, together, ngram):
        assert finished.code == 0, finished.err
        report = finished.json
        assert report["token_ids"] == alone.json["token_ids"]
        assert report["text"] == alone.json["text"]
        assert len(report["sources"]) == report["usage"]["completion_tokens"] == 60
        assert report["finish_reason"] == "length"
        assert report["seed"] == 7
    assert set(alone.json["sources"]) == {"fill"}
    assert set(together.json["sources"]) == {"draft", "target"}
    timings = together.json["timings"]
    assert timings["num_accepted_tokens"] == together.json["sources"].count("draft") > 0
    assert timings["target_passes"] < 60 == alone.json["timings"]["target_passes"]
    for name in ("ttft_ms", "tpot_ms", "rtt_ms", "draft_ms_per_token", "verify_ms", "num_drafts", "bytes_up"):
        assert timings[name] > 0, name
    assert timings["bytes_down"] > 0
    assert timings["edge_overhead_ms"] > 0
    assert timings["cloud_overhead_ms"] > 0


async def test_text_goes_to_stdout_and_figures_to_stderr(endless_pair: TinyPair) -> None:
    async with service(endless_pair.target_folder) as cloud:
        plain = await run("draftwire", *generate(endless_pair, cloud.address, "--max-tokens", "20"))
        as_json = await run(
            "draftwire", *generate(endless_pair, cloud.address, "--max-tokens", "20", "--json")
        )
    assert plain.out.rstrip("\n") == as_json.json["text"].rstrip("\n")
    assert "20 tokens" in plain.err


async def test_explain_says_what_was_seen_and_decided_after_every_verdict(endless_pair: TinyPair) -> None:
    async with service(endless_pair.target_folder) as cloud:
        options = ("--max-tokens", "30", "--explain")
        plain = await run("draftwire", *generate(endless_pair, cloud.address, *options))
        as_json = await run("draftwire", *generate(endless_pair, cloud.address, *options, "--json"))
    assert (plain.code, as_json.code) == (0, 0), plain.err + as_json.err
    assert "accepted" in plain.err
    assert "TPOT*" in plain.err
    rows = [json.loads(line) for line in as_json.err.splitlines() if line.startswith("{")]
    assert sum(row["committed"] for row in rows) == as_json.json["usage"]["completion_tokens"]
    assert sum(row["num_accepted"] for row in rows) == as_json.json["timings"]["num_accepted_tokens"]
    assert {row["mode"] for row in rows} <= {"duplex", "lockstep", "cloud"}


async def test_a_killed_server_is_replayed_to_when_it_is_back(endless_pair: TinyPair) -> None:
    options = (
        "--temperature",
        "1.0",
        "--seed",
        "3",
        "--max-tokens",
        "400",
        "--gamma",
        "2",
        "--mode",
        "lockstep",
    )
    cloud = await start_service(endless_pair.target_folder)
    expected = await run("draftwire", *generate(endless_pair, cloud.address, *options, "--json"))
    port = int(cloud.address.rsplit(":", 1)[1])
    writer = await start("draftwire", *generate(endless_pair, cloud.address, *options))
    assert writer.stdout is not None
    head = await writer.stdout.read(20)
    await cloud.kill()
    async with service(endless_pair.target_folder, port):
        rest, err = await writer.communicate()
    assert writer.returncode == 0, err.decode()
    assert (head + rest).decode().rstrip("\n") == expected.json["text"].rstrip("\n")


async def test_ctrl_c_ends_with_130_and_frees_the_session(endless_pair: TinyPair) -> None:
    import signal

    async with service(endless_pair.target_folder) as cloud:
        writer = await start("draftwire", *generate(endless_pair, cloud.address, "--max-tokens", "450"))
        assert writer.stdout is not None
        await writer.stdout.read(5)
        writer.send_signal(signal.SIGINT)
        _, err = await writer.communicate()
        assert writer.returncode == 130
        assert b"Traceback" not in err


async def test_doctor_and_health_say_all_is_well(endless_pair: TinyPair) -> None:
    drafter = str(endless_pair.drafters["noisy"])
    async with service(endless_pair.target_folder) as cloud:
        healthy = await run("draftwire-cloud", "health", cloud.address)
        seen = await run("draftwire", "doctor", "--cloud", cloud.address, "--draft-model", drafter, "--json")
    assert (healthy.code, healthy.out.strip()) == (0, "SERVING")
    assert seen.code == 0, seen.out
    assert all(finding["ok"] for finding in json.loads(seen.out))
    gone = await run("draftwire-cloud", "health", cloud.address, "--timeout-s", "2")
    assert (gone.code, gone.out.strip()) == (1, "UNREACHABLE")
    ill = await run("draftwire", "doctor", "--cloud", cloud.address, "--draft-model", drafter, "--json")
    assert ill.code == 1
    parts = {finding["part"]: finding for finding in json.loads(ill.out)}
    assert parts["drafter"]["ok"]
    assert not parts["cloud"]["ok"]
    assert "draftwire-cloud serve" in parts["cloud"]["detail"]


async def test_a_taken_port_is_named(endless_pair: TinyPair) -> None:
    async with service(endless_pair.target_folder) as cloud:
        port = cloud.address.rsplit(":", 1)[1]
        second = await run(
            "draftwire-cloud", "serve", "--model", str(endless_pair.target_folder), "--port", port
        )
    assert second.code == 2
    assert "--port" in second.err


async def test_several_commands_at_once_get_their_own_texts(endless_pair: TinyPair) -> None:
    async with service(endless_pair.target_folder) as cloud:
        calls = [
            generate(
                endless_pair,
                cloud.address,
                "--json",
                "--temperature",
                "1",
                "--seed",
                seed,
                "--max-tokens",
                "50",
            )
            for seed in ("1", "2", "3")
        ]
        alone = [(await run("draftwire", *call)).json["token_ids"] for call in calls]
        at_once = await asyncio.gather(*(run("draftwire", *call) for call in calls))
    assert [one.json["token_ids"] for one in at_once] == alone
    assert len({tuple(ids) for ids in alone}) == 3
