"""The images of deploy/docker: what a build takes, who runs in them, and that the manifests of Kubernetes fit them."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import yaml

dockerfile_parse = pytest.importorskip("dockerfile_parse", reason="there is no dockerfile-parse")

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
MANIFESTS = ROOT / "deploy" / "kubernetes"


def instructions() -> list[tuple[str, str]]:
    parsed = dockerfile_parse.DockerfileParser(path=str(DOCKERFILE), cache_content=True).structure
    return [(each["instruction"], each["value"]) for each in parsed if each["instruction"] != "COMMENT"]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, behind those of the stage that it begins with."""
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, value in instructions():
        if instruction == "FROM":
            base, _, name = re.fullmatch(r"(\S+)( AS (\w+))", value).groups()
            assert base == "${BASE}" or base in found
            current = found.setdefault(name, list(found.get(base, [])))
        elif found:
            current.append((instruction, value))
    return found


def last(stage: str, instruction: str) -> str:
    return [value for name, value in stages()[stage] if name == instruction][-1]


def test_nothing_is_fetched_but_packages():
    for instruction, value in instructions():
        assert instruction != "ADD", value
        assert instruction != "RUN" or not re.search(r"https?://|\b(curl|wget|git)\b", value), value


def test_what_is_copied_is_in_the_repository():
    ignored = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    copied = [value.split()[:-1] for name, value in instructions() if name == "COPY" and "--from" not in value]
    assert copied
    for source in sum(copied, []):
        assert (ROOT / source).exists()
        assert source.split("/")[0] not in ignored


@pytest.mark.parametrize("stage", ["worker", "controller"])
def test_an_image_has_no_compiler_and_no_root(stage: str):
    assert last(stage, "USER") == "1000:1000"
    assert not [
        value for name, value in stages()[stage] if name == "RUN" and re.search("install.sh|-dev|g\\+\\+", value)
    ]


def test_the_controller_takes_its_command_and_is_asked_at_its_health_port(tmp_path: pathlib.Path):
    program, *options = json.loads(last("controller", "CMD"))
    request = "req -x509 -newkey rsa:2048 -nodes -subj /CN=egeria -keyout tls.key -out tls.crt"
    subprocess.run(["openssl", *request.split()], cwd=tmp_path, check=True, capture_output=True)
    shutil.copy(tmp_path / "tls.crt", tmp_path / "ca.crt")
    paths = [re.sub("/var/lib/egeria|/etc/egeria/tls", str(tmp_path), option) for option in options]
    assert program == "egeria-controller"
    call = [pathlib.Path(os.environ["EGERIA_BUILD"]) / "bin" / program, *paths, "--check-config"]
    ran = subprocess.run(call, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    port = next(re.search(r":(\d+)$", option).group(1) for option in options if option.startswith("--metrics-listen"))
    assert f":{port}/healthz" in last("controller", "HEALTHCHECK")


def test_the_manifests_run_programs_of_the_image_as_its_user():
    documents = [document for path in MANIFESTS.glob("*.yaml") for document in yaml.safe_load_all(path.read_text())]
    pods = [document["spec"]["template"]["spec"] for document in documents if "template" in document.get("spec", {})]
    assert len(pods) == 2
    page = (ROOT / "docs" / "guides" / "installing.md").read_text(encoding="utf-8")
    for pod in pods:
        assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == "1000:1000"
        for container in pod["containers"]:
            assert f"--target controller -t {container['image']} ." in page
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert (pathlib.Path(os.environ["EGERIA_BUILD"]) / "bin" / container["command"][0]).exists()


def test_docker_builds_the_images():
    if not os.environ.get("EGERIA_TEST_DOCKER"):
        pytest.skip("it compiles everything once more: EGERIA_TEST_DOCKER=1 runs it")
    if shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0:
        pytest.skip("no engine of Docker runs on this machine")
    for target, image in (("worker", "egeria-worker"), ("controller", "egeria")):
        build = ["docker", "build", "-f", str(DOCKERFILE), "--target", target, "-t", image, str(ROOT)]
        subprocess.run(build, check=True)
    run = ["docker", "run", "--rm", "--read-only", "--tmpfs", "/tmp"]
    subprocess.run([*run, "egeria", "egeria-controller", "--version"], check=True)
    subprocess.run([*run, "egeria-worker", "python3", "-c", "import egeria"], check=True)
