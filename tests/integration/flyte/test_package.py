"""`pyflyte package` works offline, and what it writes says what a Flyte cluster must know."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from flyteidl.admin import task_pb2
from flyteidl.admin.launch_plan_pb2 import LaunchPlan
from google.protobuf.json_format import MessageToDict

from tasks.content import source_digest

ROOT = Path(__file__).resolve().parents[3]


def pack(directory: Path, **variables: str) -> Path:
    """Package without a network; the folder of what the package holds."""
    archive = directory / "flyte.tgz"
    command = [str(Path(sys.executable).parent / "pyflyte"), "--pkgs", "workflows", "package", "--image", "relax:1"]
    environment = {**os.environ, "HOME": str(directory), "HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": ""}
    subprocess.run(
        [*command, "--source", str(ROOT), "--output", str(archive), "--force"],
        cwd=ROOT,
        env={**environment, **variables},
        capture_output=True,
        timeout=120,
        check=True,
    )
    with tarfile.open(archive) as tar:
        tar.extractall(directory / "pb", filter="data")
    return directory / "pb"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    schedules = str(ROOT / "examples/tiny_math/schedules.yaml")
    return pack(tmp_path_factory.mktemp("package"), RELAX_SCHEDULES=schedules)


def task(package: Path, name: str) -> task_pb2.TaskSpec:
    (path,) = package.glob(f"*_tasks.{name}_1.pb")
    spec = task_pb2.TaskSpec()
    spec.ParseFromString(path.read_bytes())
    return spec


@pytest.mark.parametrize("name", ["train.train", "warm_start.warm_start"])
def test_training_tasks_ask_for_a_ray_cluster_that_grows(package: Path, name: str) -> None:
    template = task(package, name).template
    assert template.type == "ray"
    cluster = MessageToDict(template.custom)
    assert cluster["shutdownAfterJobFinishes"] is True
    assert cluster["rayCluster"]["enableAutoscaling"] is True
    (workers,) = cluster["rayCluster"]["workerGroupSpec"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (1, 4)
    (container,) = workers["k8sPod"]["podSpec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "4", "memory": "16Gi"}
    assert template.metadata.timeout.seconds == 3 * 24 * 3600


@pytest.mark.parametrize(
    "name",
    [
        "intake.intake_file",
        "intake.intake_model",
        "convert_dataset.convert_dataset",
        "validate_dataset.validate_dataset",
        "warm_start.warm_start",
        "import_checkpoint.import_checkpoint",
        "train.train",
        "evaluate.evaluate",
        "export_checkpoint.export_checkpoint",
        "publish.publish",
    ],
)
def test_every_task_is_cached_by_source_and_has_retries_resources_and_a_deck(package: Path, name: str) -> None:
    template = task(package, name).template
    assert template.metadata.discoverable
    assert template.metadata.discovery_version == source_digest()
    assert template.metadata.retries.retries == 2
    assert template.metadata.generates_deck.value
    requests = {entry.name: entry.value for entry in template.container.resources.requests}
    assert set(requests) == {1, 3}  # CPU and memory in flyteidl's ResourceName
    assert template.container.image == "relax:1"


def test_a_schedule_becomes_a_launch_plan_with_all_inputs_fixed(package: Path) -> None:
    (path,) = package.glob("*tiny-math-retraining*_3.pb")
    plan = LaunchPlan()
    plan.ParseFromString(path.read_bytes())
    assert plan.spec.entity_metadata.schedule.cron_schedule.schedule == "0 3 * * *"
    assert plan.spec.workflow_id.name == "workflows.retraining.retraining"
    fixed = plan.spec.fixed_inputs.literals
    assert fixed["name"].scalar.primitive.string_value == "tiny-math"
    assert fixed["train_prompts"].scalar.primitive.string_value == "s3://prompts/tiny-math/train.parquet"
    assert {"heldout_prompts", "base_model", "config", "format", "overrides", "seed", "margin"} < set(fixed)
    assert not plan.spec.default_inputs.parameters


def test_the_launch_plan_has_the_inputs_that_the_documentation_names(package: Path) -> None:
    (path,) = package.glob("*_workflows.post_training.post_training_3.pb")
    plan = LaunchPlan()
    plan.ParseFromString(path.read_bytes())
    inputs = plan.spec.default_inputs.parameters
    required = {name for name, parameter in inputs.items() if parameter.required}
    assert required == {"train_prompts", "heldout_prompts", "base_model", "config"}
    assert {"demonstrations", "warm_start_options", "overrides", "seed", "margin"} <= set(inputs)


def test_a_described_cluster_is_in_the_package(tmp_path: Path) -> None:
    package = pack(tmp_path, RELAX_CLUSTER=str(ROOT / "examples/tiny_math/cluster.yaml"))
    training = task(package, "train.train").template
    (workers,) = MessageToDict(training.custom)["rayCluster"]["workerGroupSpec"]
    assert (workers["minReplicas"], workers["maxReplicas"]) == (1, 2)
    (container,) = workers["k8sPod"]["podSpec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "32", "memory": "256Gi", "nvidia.com/gpu": "8"}
    assert training.extended_resources.gpu_accelerator.device == "nvidia-h100"
    assert training.metadata.interruptible
    for name in ("train.train", "intake.intake_file", "publish.publish"):
        template = task(package, name).template
        secrets = [(each.group, each.key, each.env_var) for each in template.security_context.secrets]
        assert ("storage", "access-key", "AWS_ACCESS_KEY_ID") in secrets
        environment = {pair.key: pair.value for pair in template.container.env}
        assert environment["RELAX_ARTIFACTS"] == "s3://models/relax"
