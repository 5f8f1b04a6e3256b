"""docker-compose.yml and the Dockerfiles name only what exists, and agree with one another.

No container engine is needed: the compose file is held against the Compose Specification's schema, and every
command in it is parsed by the program that it names.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

SIDES = ("cloud", "edge")
#: What a variable stands for when nobody sets it: ${NAME:-value}.
VARIABLE = re.compile(r"\$\{\w+:-([^}]*)\}")


@pytest.fixture(scope="session")
def compose(repository: Any) -> dict[str, Any]:
    """The compose file with every variable at its default."""
    text = VARIABLE.sub(r"\1", (repository.root / "docker-compose.yml").read_text())
    assert "${" not in text
    return dict(yaml.safe_load(text))


@pytest.fixture(scope="session", params=SIDES)
def side(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def dockerfile(repository: Any, side: str) -> list[tuple[str, str]]:
    """The instructions of a Dockerfile: name and the rest, continued lines joined, comments gone."""
    lines = (repository.root / f"docker/{side}.Dockerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if line.strip() and not line.startswith("#"))
    pairs = (line.split(maxsplit=1) for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines())
    return [(name, rest) for name, rest in pairs]


def values(repository: Any, side: str, name: str) -> list[str]:
    """What an instruction says, once for each time it is used."""
    return [rest for found, rest in dockerfile(repository, side) if found == name]


def final_stage(repository: Any, side: str) -> list[tuple[str, str]]:
    """The instructions that make the image which is kept."""
    instructions = dockerfile(repository, side)
    last = max(index for index, (name, _) in enumerate(instructions) if name == "FROM")
    return instructions[last:]


def words(repository: Any, side: str, name: str) -> list[str]:
    """The last ENTRYPOINT, CMD or VOLUME, in its JSON form."""
    return list(json.loads(values(repository, side, name)[-1]))


def health_command(repository: Any) -> list[str]:
    """What the cloud's Dockerfile asks for its health."""
    (rest,) = values(repository, "cloud", "HEALTHCHECK")
    return list(json.loads(rest.split(" CMD ", 1)[1]))


def commands(repository: Any, compose: dict[str, Any]) -> list[list[str]]:
    """Every command that a container may run, the program's name first."""
    found = [compose["services"]["cloud"]["healthcheck"]["test"][1:], health_command(repository)]
    for side in SIDES:
        entry = words(repository, side, "ENTRYPOINT")
        found += [[*entry, *compose["services"][side]["command"]], [*entry, *words(repository, side, "CMD")]]
    return found


def examples(repository: Any) -> list[list[str]]:
    """The commands of our own in the comments of the compose file and the Dockerfiles."""
    text = (repository.root / "docker-compose.yml").read_text() + (
        repository.root / "docker/edge.Dockerfile"
    ).read_text()
    return [
        ["draftwire", *shlex.split(found)]
        for found in re.findall(r"^#.* (generate \".*)$", text, re.MULTILINE)
    ]


def parse(repository: Any, command: list[str]) -> dict[str, Any]:
    """Let the program itself read a command line, without running it; returns the options' values."""
    module, _ = repository.project["scripts"][command[0]].split(":")
    parser: Any = typer.main.get_command(importlib.import_module(module).app)
    arguments = command[1:]
    while hasattr(parser, "commands") and arguments:
        parser, arguments = parser.commands[arguments[0]], arguments[1:]
    return dict(parser.make_context(command[0], list(arguments)).params)


def schema_check(repository: Any, file: Path) -> tuple[int, str]:
    """Hold a compose file against the Compose Specification's schema."""
    done = repository.run(
        [repository.tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", file]
    )
    return done.returncode, done.stdout + done.stderr


def test_the_compose_file_is_valid(repository: Any) -> None:
    code, said = schema_check(repository, repository.root / "docker-compose.yml")
    assert code == 0, said


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("healthcheck:", "heathcheck:"),
        ("condition: service_healthy", "condition: service_is_healthy"),
        ("start_period: 60m", "start_period: [60]"),
        ("  cloud-models:\n  edge-models:", "  - cloud-models"),
    ],
)
def test_a_mistake_in_the_compose_file_is_seen(
    repository: Any, tmp_path: Path, right: str, wrong: str
) -> None:
    text = (repository.root / "docker-compose.yml").read_text()
    assert right in text
    edited = tmp_path / "docker-compose.yml"
    edited.write_text(text.replace(right, wrong))
    code, said = schema_check(repository, edited)
    assert code == 1, said


def test_every_command_is_understood_by_the_program_it_names(
    repository: Any, compose: dict[str, Any]
) -> None:
    assert len(commands(repository, compose)) == 6
    assert len(examples(repository)) == 2
    for command in commands(repository, compose) + examples(repository):
        if command[1:] != ["--help"]:
            parse(repository, command)


@pytest.mark.parametrize(
    "wrong",
    [
        ["draftwire-cloud", "serve", "--hots", "0.0.0.0"],
        ["draftwire-cloud", "serve", "--port", "high"],
        ["draftwire", "demo", "--await", "60"],
        ["draftwire", "dmo"],
        ["draftwire-server", "serve"],
    ],
    ids=" ".join,
)
def test_a_command_that_nobody_understands_is_seen(repository: Any, wrong: list[str]) -> None:
    with pytest.raises(Exception, match=r"(?i)no such option|valid integer|dmo|draftwire-server"):
        parse(repository, wrong)


def test_every_command_explains_itself(repository: Any, compose: dict[str, Any]) -> None:
    for program, subcommand in sorted(
        {(command[0], command[1]) for command in commands(repository, compose)}
    ):
        shown = [] if subcommand == "--help" else [subcommand]
        done = repository.run([*repository.script(program), *shown, "--help"])
        assert done.returncode == 0, done.stderr
        assert " ".join(["Usage:", program, *shown]) in done.stdout


def test_one_port_runs_through_it(repository: Any, compose: dict[str, Any]) -> None:
    cloud, edge = compose["services"]["cloud"], compose["services"]["edge"]
    serve = parse(repository, [*words(repository, "cloud", "ENTRYPOINT"), *cloud["command"]])
    port = str(serve["port"])
    assert serve["host"] == "0.0.0.0"
    assert values(repository, "cloud", "EXPOSE") == [port]
    assert cloud["healthcheck"]["test"][-1] == f"127.0.0.1:{port}"
    assert [published.split(":")[0] for published in cloud["ports"]] == ["127.0.0.1"]
    assert [published.split(":")[-1] for published in cloud["ports"]] == [port]
    demo = parse(repository, [*words(repository, "edge", "ENTRYPOINT"), *edge["command"]])
    assert demo["cloud"] == f"cloud:{port}"


def test_the_images_alone_do_what_compose_makes_them_do(repository: Any, compose: dict[str, Any]) -> None:
    cloud = compose["services"]["cloud"]
    assert health_command(repository) == cloud["healthcheck"]["test"][1:]
    entry = words(repository, "cloud", "ENTRYPOINT")
    alone = parse(repository, [*entry, *words(repository, "cloud", "CMD")])
    assert alone == parse(repository, [*entry, *cloud["command"]])
    (rest,) = values(repository, "cloud", "HEALTHCHECK")
    flags = dict(flag.removeprefix("--").split("=") for flag in rest.split(" CMD ")[0].split())
    healthcheck = cloud["healthcheck"]
    assert flags == {
        name.replace("_", "-"): str(value) for name, value in healthcheck.items() if name != "test"
    }


def test_the_edge_waits_for_a_healthy_cloud_and_both_load_one_pair(
    repository: Any, compose: dict[str, Any]
) -> None:
    services = compose["services"]
    assert set(services) == set(SIDES)
    assert services["edge"]["depends_on"] == {"cloud": {"condition": "service_healthy"}}
    serve = parse(repository, [*words(repository, "cloud", "ENTRYPOINT"), *services["cloud"]["command"]])
    assert services["edge"]["environment"]["DRAFTWIRE_PAIR"] == serve["model"]


def test_the_probe_outlasts_the_programs_own_limit(repository: Any, compose: dict[str, Any]) -> None:
    healthcheck = compose["services"]["cloud"]["healthcheck"]
    limit_s = parse(repository, healthcheck["test"][1:])["timeout_s"]
    assert float(healthcheck["timeout"].removesuffix("s")) >= limit_s + 5


def test_models_are_kept_in_a_volume_that_the_program_uses(
    repository: Any, compose: dict[str, Any], side: str
) -> None:
    (folder,) = words(repository, side, "VOLUME")
    environment = " ".join(rest for name, rest in final_stage(repository, side) if name == "ENV")
    assert f"DRAFTWIRE_CACHE_DIR={folder}" in environment.split()
    (mount,) = compose["services"][side]["volumes"]
    volume, target = mount.split(":")
    assert target == folder
    assert volume in compose["volumes"]


def test_compose_builds_the_dockerfile_with_arguments_it_takes(
    repository: Any, compose: dict[str, Any], side: str
) -> None:
    build = compose["services"][side]["build"]
    assert (repository.root / build["context"] / build["dockerfile"]).samefile(
        repository.root / f"docker/{side}.Dockerfile"
    )
    taken = {rest.split("=")[0] for rest in values(repository, side, "ARG")}
    assert taken == set(build["args"])


def test_what_is_copied_exists_and_reaches_the_builder(repository: Any, side: str) -> None:
    ignore = (repository.root / ".dockerignore").read_text().splitlines()
    rules = [line for line in ignore if line and not line.startswith("#")]
    assert rules[0] == "*"
    allowed = {line.removeprefix("!") for line in rules if line.startswith("!")}
    copies = [rest.split() for rest in values(repository, side, "COPY") if not rest.startswith("--from")]
    sources = {source for *sources, _ in copies for source in sources}
    assert {
        "pyproject.toml",
        "constraints.txt",
        *(str(p.parent.name) for p in repository.packages),
    } <= sources
    for source in sources:
        assert (repository.root / source).exists(), source
        assert Path(source).parts[0] in allowed, source
    assert all((repository.root / name).exists() for name in allowed)


def test_the_image_runs_as_nobody_special_and_holds_no_compiler(repository: Any, side: str) -> None:
    stage = final_stage(repository, side)
    assert values(repository, side, "FROM") == ["python:3.11-slim AS build", "python:3.11-slim"]
    assert [rest for name, rest in stage if name == "USER"] == ["draftwire"]
    assert ("COPY", "--from=build /venv /venv") in stage
    assert not re.search(
        r"build-essential|gcc|g\+\+|cmake|ninja|pip install", " ".join(rest for _, rest in stage)
    )


def test_every_installation_is_constrained(repository: Any, side: str) -> None:
    installations = [
        part for rest in values(repository, side, "RUN") for part in rest.split("&&") if "pip install" in part
    ]
    assert installations
    assert all("-c constraints.txt" in part for part in installations)
    assert f'".[{side}]"' in installations[-1]


def test_the_lean_build_is_asked_for_where_it_is_compiled(repository: Any) -> None:
    (rest,) = (rest for rest in values(repository, "edge", "RUN") if "CMAKE_ARGS" in rest)
    (included,) = re.findall(r"-DCMAKE_PROJECT_llama_cpp_INCLUDE=(\S+)", rest)
    (workdir, _) = values(repository, "edge", "WORKDIR")
    copied = Path(included).relative_to(workdir)
    assert "set(LLAMA_BUILD_COMMON OFF)" in (repository.root / copied).read_text()
    assert "-DLLAVA_BUILD=OFF" in rest
    assert "-DLLAMA_OPENSSL=OFF" in rest
