"""The recipe for KubeRay, against what its custom resources are known to take.

These are facts of KubeRay's API reference (ray.io/v1), written down here: the schema itself, 1.3 MB
of YAML, is in no package that a test could use. What a pod takes is not checked.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest
from commandline import turngap_here
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]

JOB = {
    "activeDeadlineSeconds": int, "backoffLimit": int, "entrypoint": str,
    "shutdownAfterJobFinishes": bool, "submissionMode": str, "ttlSecondsAfterFinished": int,
    "rayClusterSpec": dict,
}  # fmt: skip
CLUSTER = {"rayVersion": str, "headGroupSpec": dict, "workerGroupSpecs": list}
HEAD = {"rayStartParams": dict, "template": dict}
GROUP = HEAD | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}


@pytest.fixture(scope="module")
def job() -> Any:
    return YAML(typ="safe").load((ROOT / "examples" / "kuberay.yaml").read_text("utf-8"))


def test_it_is_a_ray_job_with_known_keys_of_the_right_types(job: Any) -> None:
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    cluster = job["spec"]["rayClusterSpec"]
    parts = [(job["spec"], JOB), (cluster, CLUSTER), (cluster["headGroupSpec"], HEAD)]
    parts += [(group, GROUP) for group in cluster["workerGroupSpecs"]]
    for part, known in parts:
        assert set(part) == set(known)
        assert {key: type(value) for key, value in part.items()} == known
    assert job["spec"]["submissionMode"] == "K8sJobMode"
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_callers_have_the_processors_that_ray_counts_and_the_head_calls_nobody(job: Any) -> None:
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in cluster["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert int(group["rayStartParams"]["num-cpus"]) <= int(resources["limits"]["cpu"])
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]


def test_its_command_is_one_that_turngap_knows(
    job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(job["spec"]["entrypoint"])
    assert program == "turngap"
    shown = turngap_here(capsys, arguments[0], "--help").out
    assert [flag for flag in arguments if flag.startswith("--") and flag not in shown] == []


def test_versions_of_ray_agree(job: Any) -> None:
    docs = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
    version = job["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"rayproject/ray:{version}-py3" in docs
    assert f"'ray=={version}'" in docs
