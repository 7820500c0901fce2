"""Documents that are compiled for Kubernetes, and deploy/kubernetes, fit the schemas that their makers publish."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest
from job_files import EGERIA, ROOT, compile_file

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="PyPI's kubernetes-validate is not installed")
trainer = pytest.importorskip("kubeflow_trainer_api", reason="PyPI's kubeflow-trainer-api is not installed")
yaml = pytest.importorskip("yaml")

VERSION = "1.29"

JOB = """
name: digits
application:
  command: [egeria-train, --task, digits, --data, "{data}/digits.bin", "a 'quoted' $(HOME) $$ word"]
  environment: {GREETING: "it's $(HOME)"}
data: {folders: [/data/digits]}
resources: {nodes: 3, ranks_per_node: 2, gpus_per_node: 2, memory_per_node: 16GiB, time_limit: 1h}
checkpoints: {folder: /work/checkpoints}
output: {folder: /work/out}
kubernetes:
  image: registry.example.com/egeria:1
  claims: {/data: data, /work: work}
"""


def documents_of(tmp_path: pathlib.Path, *changes: tuple[str, str]) -> list[dict]:
    text = JOB
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "egeria.yaml").write_text(text)
    result = compile_file(tmp_path / "egeria.yaml", "--to", "kubernetes")
    assert (result.returncode, result.stderr) == (0, "")
    return list(yaml.safe_load_all(result.stdout))


def by_kind(documents: list[dict]) -> dict[str, dict]:
    return {document["kind"]: document for document in documents}


def same_after_a_round_trip(model: type, document: dict) -> None:
    """The model drops what it does not know, so that all that is left has its place in the schema."""
    assert model.from_dict(document).to_dict() == document


def test_a_train_job_and_its_controller_are_valid(tmp_path: pathlib.Path) -> None:
    kinds = by_kind(documents_of(tmp_path))
    assert list(kinds) == ["PersistentVolumeClaim", "Service", "Deployment", "TrainJob"]
    for kind in ("PersistentVolumeClaim", "Service", "Deployment"):
        kubernetes_validate.validate(kinds[kind], VERSION, strict=True)
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    same_after_a_round_trip(TrainerV1alpha1TrainJob, kinds["TrainJob"])
    spec = kinds["TrainJob"]["spec"]
    assert spec["trainer"]["numNodes"] == 3
    assert spec["trainer"]["numProcPerNode"] == 2
    assert spec["trainer"]["resourcesPerNode"]["limits"] == {"memory": str(16 << 30), "nvidia.com/gpu": "2"}
    assert spec["activeDeadlineSeconds"] == 3600


def test_the_round_trip_finds_a_key_that_is_none(tmp_path: pathlib.Path) -> None:
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob

    job = by_kind(documents_of(tmp_path))["TrainJob"]
    job["spec"]["trainer"]["numNode"] = 3
    with pytest.raises(AssertionError):
        same_after_a_round_trip(TrainerV1alpha1TrainJob, job)


def test_the_controller_is_one_that_has_gone_before_the_next_comes(tmp_path: pathlib.Path) -> None:
    kinds = by_kind(documents_of(tmp_path))
    spec = kinds["Deployment"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    container = spec["template"]["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "health"}
    environment = {one["name"]: one["value"] for one in kinds["TrainJob"]["spec"]["trainer"]["env"]}
    assert environment["EGERIA_CONTROLLER"] == "digits-controller:7464"
    assert kinds["Service"]["spec"]["selector"].items() <= spec["template"]["metadata"]["labels"].items()


def test_a_pytorch_job_has_valid_pods(tmp_path: pathlib.Path) -> None:
    documents = documents_of(tmp_path, ("kubernetes:\n", "kubernetes:\n  kind: PyTorchJob\n"))
    job = by_kind(documents)["PyTorchJob"]
    assert job["apiVersion"] == "kubeflow.org/v1"
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: spec["replicas"] for name, spec in replicas.items()} == {"Master": 1, "Worker": 2}
    for spec in replicas.values():
        template = {
            "apiVersion": "v1",
            "kind": "PodTemplate",
            "metadata": {"name": "digits"},
            "template": spec["template"],
        }
        kubernetes_validate.validate(template, VERSION, strict=True)
        assert "--node-rank" in spec["template"]["spec"]["containers"][0]["command"][2]


def test_an_existing_controller_is_used_and_none_is_made(tmp_path: pathlib.Path) -> None:
    address = "egeria-controller.egeria:7464"
    documents = documents_of(tmp_path, ("output:", f"egeria: {{controller: '{address}'}}\noutput:"))
    assert [document["kind"] for document in documents] == ["TrainJob"]
    environment = {one["name"]: one["value"] for one in documents[0]["spec"]["trainer"]["env"]}
    assert environment["EGERIA_CONTROLLER"] == address


def as_kubernetes_expands(text: str, variables: dict[str, str]) -> str:
    """Gives the text that a container gets: $(NAME) of a variable that it has, and $$ as $."""

    def value(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return variables.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", value, text)


def test_what_the_pods_run_is_a_script_that_bash_takes_with_the_words_that_were_written(tmp_path: pathlib.Path) -> None:
    folders = (
        ("/data/digits", f"{tmp_path}/data"),
        ("/work/checkpoints", f"{tmp_path}/c"),
        ("/work/out", f"{tmp_path}/o"),
    )
    job = documents_of(tmp_path, *folders, ("{/data: data, /work: work}", f"{{{tmp_path}: work}}"))[-1]
    script = as_kubernetes_expands(job["spec"]["trainer"]["command"][2], {"HOME": "/wrong"})
    (tmp_path / "egeria-run").write_text('#!/bin/sh\nfor word; do echo "word $word"; done\necho "greeting $GREETING"\n')
    (tmp_path / "egeria-run").chmod(0o755)
    said = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    assert f"word {tmp_path}/data/digits.bin" in said
    assert "word a 'quoted' $(HOME) $$ word" in said
    assert "greeting it's $(HOME)" in said


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "image: registry.example.com/egeria:1",
            "kind: TrainJob",
            "kubernetes.image: it is missing; name the container",
        ),
        ("/work: work", "/w: work", "checkpoints.folder: /work/checkpoints lies in no folder of kubernetes.claims"),
        (
            "output:",
            "egeria: {controller: 'unix:/run/c.sock'}\noutput:",
            "egeria.controller: a Unix socket is not seen",
        ),
    ],
)
def test_what_kubernetes_cannot_do_is_refused(old: str, new: str, message: str, tmp_path: pathlib.Path) -> None:
    (tmp_path / "egeria.yaml").write_text(JOB.replace(old, new))
    result = compile_file(tmp_path / "egeria.yaml", "--to", "kubernetes")
    assert result.returncode == 2
    assert message in result.stderr


KUBECTL = """#!/bin/sh
echo "kubectl $*" >>"$CALLS"
case $1 in
  apply) echo service/digits-controller; echo trainjob.trainer.kubeflow.org/digits ;;
  get) printf '{"status": {"conditions": [{"type": "%s", "status": "True", "message": "why"}]}}' "$CONDITION" ;;
  logs) echo "[pod/digits-node-0-0] step 1" ;;
esac
"""


def test_a_job_is_applied_watched_and_deleted_by_kubectl(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/kubectl").write_text(KUBECTL)
    (tmp_path / "bin/kubectl").chmod(0o755)
    file = tmp_path / "egeria.yaml"
    file.write_text(JOB.replace("/work", str(tmp_path / "work")))
    calls = tmp_path / "calls"

    def egeria(*words: str, condition: str = "") -> str:
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "CALLS": str(calls), "CONDITION": condition}
        command = [EGERIA, words[0], file, *words[1:]]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout

    assert "submitted as kubernetes trainjob.trainer.kubeflow.org/digits" in egeria("submit", "--to", "kubernetes")
    script = tmp_path / "work/out/job.yaml"
    assert script.read_text() == compile_file(file, "--to", "kubernetes").stdout
    for condition, words in {
        "Created": "waiting",
        "Running": "running",
        "Complete": "finished",
        "Failed": "failed: why",
    }.items():
        assert egeria("status", condition=condition).startswith(f"digits: {words} (kubernetes ")
    assert egeria("logs") == "[pod/digits-node-0-0] step 1\n"
    assert egeria("logs", "-f") == "[pod/digits-node-0-0] step 1\n"
    egeria("cancel")
    said = calls.read_text().splitlines()
    assert said[0] == f"kubectl apply --output=name --filename {script}"
    assert "--selector jobset.sigs.k8s.io/jobset-name=digits" in said[-3]
    assert said[-2] == said[-3] + " --follow"
    assert said[-1] == f"kubectl delete --ignore-not-found --wait=false --filename {script}"


def test_the_base_is_valid_and_names_all_its_files() -> None:
    base = ROOT / "deploy/kubernetes"
    kustomization = yaml.safe_load((base / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == sorted(
        path.name for path in base.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    documents = [one for file in kustomization["resources"] for one in yaml.safe_load_all((base / file).read_text())]
    for document in documents:
        kubernetes_validate.validate(document, VERSION, strict=True)
    assert sorted(document["kind"] for document in documents) == sorted(
        ["Namespace", "PersistentVolumeClaim", "Service", "Deployment", "DaemonSet"]
    )


def test_the_options_of_the_base_are_options_of_the_programs() -> None:
    for file in ("controller.yaml", "cache.yaml"):
        for document in yaml.safe_load_all((ROOT / "deploy/kubernetes" / file).read_text()):
            for container in document["spec"].get("template", {}).get("spec", {}).get("containers", []):
                options = [one for one in container["args"] if not one.startswith("--tls")]
                subprocess.run([EGERIA.parent / container["command"][0], *options, "--check-config"], check=True)
