"""The manifests of deploy/kubernetes: what they name exists, fits, and works as processes."""

from __future__ import annotations

import copy
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest
import yaml
from click.testing import CliRunner

import rmq
from rmq.cli import cli
from rmq.kernel.core.validation import parse_duration
from rmq.server.config import SETTINGS, ServerConfig
from tests.server.running import get, until
from tests.server.test_deployment import command_of
from tests.server.test_monitoring import mistakes
from tests.servers import Server as Redis, free_port

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
FOLDER = DEPLOY / "kubernetes"
Document = dict[str, Any]
VARIABLES = {setting.variable for setting in SETTINGS}


def manifests() -> list[Document]:
    """All objects of the folder, but for the one that lists the files."""
    files = sorted(FOLDER.glob("*.yaml"))
    return [
        document
        for file in files
        if file.name != "kustomization.yaml"
        for document in yaml.safe_load_all(file.read_text())
    ]


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def pods(documents: list[Document]) -> Iterator[tuple[str, Document, Document]]:
    """The name, the spec and the only container of each Deployment's pods."""
    for deployment in of_kind(documents, "Deployment"):
        spec = deployment["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        yield deployment["metadata"]["name"], spec, container


def is_part(selector: Document, labels: Document) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def faults(documents: list[Document]) -> list[str]:
    """Return what is wrong with manifests."""
    found: list[str] = []
    labels = {
        deployment["metadata"]["name"]: deployment["spec"]["template"]["metadata"]["labels"]
        for deployment in of_kind(documents, "Deployment")
    }
    for deployment in of_kind(documents, "Deployment"):
        name = deployment["metadata"]["name"]
        if not is_part(deployment["spec"]["selector"]["matchLabels"], labels[name]):
            found.append(f"{name}: its selector matches no pod")
        budgets = [
            budget
            for budget in of_kind(documents, "PodDisruptionBudget")
            if is_part(budget["spec"]["selector"]["matchLabels"], labels[name])
        ]
        if len(budgets) != 1:
            found.append(f"{name}: has {len(budgets)} budgets")
    for name, spec, container in pods(documents):
        found += [f"{name}: {fault}" for fault in faults_of_pod(spec, container)]
    for service in of_kind(documents, "Service"):
        name = service["metadata"]["name"]
        chosen = [
            c for n, _, c in pods(documents) if is_part(service["spec"]["selector"], labels[n])
        ]
        ports = {port["name"] for container in chosen for port in container["ports"]}
        if not {port["targetPort"] for port in service["spec"]["ports"]} <= ports:
            found.append(f"service {name}: a port that no pod has")
    return found


def faults_of_pod(spec: Document, container: Document) -> Iterator[str]:
    """Yield what is wrong with a pod of one container."""
    words = container["args"]
    if words[0] not in ("worker", "server"):
        yield f"{words[0]}: no command that goes on"
    grace_s = parse_duration(words[words.index("--grace") + 1])
    if spec["terminationGracePeriodSeconds"] <= grace_s:
        yield "killed before its grace ends"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    listened = words[words.index("--health" if "--health" in words else "--listen") + 1]
    if list(ports.values()) != [int(listened.rpartition(":")[2])]:
        yield "listens at another port"
    if not listened.startswith("0.0.0.0:"):
        yield "answers nobody outside of the pod"
    for probe, path in (("readiness", "/readyz"), ("liveness", "/livez"), ("startup", "/livez")):
        asked = container.get(f"{probe}Probe", {}).get("httpGet", {})
        if asked.get("path") != path:
            yield f"{probe}: does not ask {path}"
        if asked.get("port") not in ports:
            yield f"{probe}: a port that it does not have"
    if container["image"].rpartition(":")[2] in ("latest", "") or ":" not in container["image"]:
        yield "image: no version"
    secrets = {
        each["name"] for each in container["env"] if "secretKeyRef" in each.get("valueFrom", {})
    }
    if "RMQ_URL" not in secrets:
        yield "RMQ_URL: not of a secret"
    if not {each["name"] for each in container["env"]} <= VARIABLES:
        yield "a variable that RMQ does not read"
    if not {"requests", "limits"} <= container["resources"].keys():
        yield "resources"
    if "memory" not in container["resources"]["limits"]:
        yield "memory without a limit"
    rights = container["securityContext"]
    if rights["allowPrivilegeEscalation"] or rights["capabilities"] != {"drop": ["ALL"]}:
        yield "rights that it does not need"
    if not (rights["readOnlyRootFilesystem"] and spec["securityContext"]["runAsNonRoot"]):
        yield "may write to its image, or is root"
    if spec["automountServiceAccountToken"]:
        yield "a token of the cluster"


def test_the_manifests_have_no_fault() -> None:
    documents = manifests()

    assert faults(documents) == []
    assert {name for name, _, _ in pods(documents)} == {"rmq-worker", "rmq-server"}
    for _, _, container in pods(documents):
        command_of(container["args"])


BROKEN: dict[str, tuple[Callable[[Document, Document], object], str]] = {
    "no command": (lambda s, c: c["args"].__setitem__(0, "ping"), "ping: no command"),
    "grace": (lambda s, c: s.update(terminationGracePeriodSeconds=20), "killed before"),
    "container port": (lambda s, c: c["ports"][0].update(containerPort=1), "another port"),
    "local": (
        lambda s, c: c.update(args=[w.replace("0.0.0.0", "127.0.0.1") for w in c["args"]]),
        "answers nobody",
    ),
    "path": (lambda s, c: c["livenessProbe"]["httpGet"].update(path="/readyz"), "liveness: does"),
    "port": (lambda s, c: c["readinessProbe"]["httpGet"].update(port="web"), "readiness: a port"),
    "no probe": (lambda s, c: c.pop("startupProbe"), "startup: does not ask"),
    "latest": (lambda s, c: c.update(image="rmq:latest"), "image: no version"),
    "no tag": (lambda s, c: c.update(image="rmq"), "image: no version"),
    "plain url": (
        lambda s, c: c["env"][0].update(valueFrom={"configMapKeyRef": {}}), "not of a secret"
    ),
    "variable": (lambda s, c: c["env"][0].update(name="RMQ_URI"), "does not read"),
    "limits": (lambda s, c: c["resources"].update(limits={}), "memory without a limit"),
    "rights": (
        lambda s, c: c["securityContext"].update(allowPrivilegeEscalation=True), "rights that"
    ),
    "root": (lambda s, c: s["securityContext"].update(runAsNonRoot=False), "or is root"),
    "token": (lambda s, c: s.update(automountServiceAccountToken=True), "a token of the cluster"),
}  # fmt: skip


@pytest.mark.parametrize("name", ["rmq-worker", "rmq-server"])
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_pod_is_found(name: str, broken: str) -> None:
    documents = copy.deepcopy(manifests())
    break_it, says = BROKEN[broken]
    ((spec, container),) = [(s, c) for n, s, c in pods(documents) if n == name]

    break_it(spec, container)

    assert any(fault.startswith(name) and says in fault for fault in faults(documents))


@pytest.mark.parametrize(
    ("kind", "path", "value", "says"),
    [
        ("PodDisruptionBudget", ("spec", "selector", "matchLabels"), {"a": "b"}, "has 0 budgets"),
        ("Deployment", ("spec", "selector", "matchLabels"), {"a": "b"}, "matches no pod"),
        ("Service", ("spec", "selector"), {"a": "b"}, "a port that no pod has"),
        ("Service", ("spec", "ports"), [{"port": 1, "targetPort": "web"}], "a port that no pod"),
    ],
)
def test_selector_or_port_that_matches_nothing_is_found(
    kind: str, path: tuple[str, ...], value: Any, says: str
) -> None:
    documents = copy.deepcopy(manifests())
    place = of_kind(documents, kind)[0]
    for part in path[:-1]:
        place = place[part]

    place[path[-1]] = value

    assert any(says in fault for fault in faults(documents))


def test_kustomize_lists_the_files_and_images_that_are_there() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert {"worker.yaml", "server.yaml"} <= set(listed["resources"])
    assert all((FOLDER / name).is_file() for name in listed["resources"])
    images = {container["image"].rpartition(":")[0] for _, _, container in pods(manifests())}
    assert {image["name"] for image in listed["images"]} == images
    commented = re.findall(r"#\s+- (\S+\.yaml)", (FOLDER / "kustomization.yaml").read_text())
    assert all((FOLDER / name).is_file() for name in commented)


def test_the_server_takes_its_words_and_variables() -> None:
    ((_, container),) = [(s, c) for n, s, c in pods(manifests()) if n == "rmq-server"]
    words = container["args"]
    flags = {
        setting.name: setting.read(words[words.index(setting.flag) + 1])
        for setting in SETTINGS
        if setting.flag in words and setting.name != "log_json"
    }
    config = ServerConfig.load(flags, {"RMQ_SERVER_TOKEN": "t" * 64}, "/dev/null")

    assert config.choose_auth(config.read_token()) == "token"
    assert config.hosts == ("*",)


# --- scaling ------------------------------------------------------------------------------------


def scaling_faults(documents: list[Document]) -> list[str]:
    """Return what is wrong with the object that scales workers."""
    (scaled,) = of_kind(documents, "ScaledObject")
    spec, found = scaled["spec"], []
    if spec["scaleTargetRef"]["name"] not in {name for name, _, _ in pods(documents)}:
        found.append("scales nothing")
    (trigger,) = spec["triggers"]
    found += mistakes(trigger["metadata"]["query"])
    ((_, container),) = [(s, c) for n, s, c in pods(documents) if n == "rmq-worker"]
    words = container["args"]
    in_a_pod = words[words.index("--processes") + 1] if "--processes" in words else "1"
    if trigger["metadata"]["threshold"] != in_a_pod or trigger["metricType"] != "AverageValue":
        found.append("the metric counts processes, and not so many are in a pod")
    if trigger["metadata"].get("ignoreNullValues") != "false":
        found.append("an empty result is 0, so the fallback is not used")
    if not 1 <= spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"]:
        found.append("bounds")
    return found


def test_what_scales_asks_for_a_metric_that_exists_and_scales_the_workers() -> None:
    assert scaling_faults(manifests()) == []


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("scaleTargetRef: {name: rmq-worker}", "scaleTargetRef: {name: worker}"),
        ("max(rmq_workers_wanted{", "max(rmq_worker_wanted{"),
        ("wanted{topic=", "wanted{queue="),
        ('threshold: "1"', 'threshold: "2"'),
        ("metricType: AverageValue", "metricType: Value"),
        ("maxReplicaCount: 20", "maxReplicaCount: 2"),
        ('ignoreNullValues: "false"', 'ignoreNullValues: "true"'),
    ],
)
def test_a_slip_in_what_scales_is_found(there: str, instead: str) -> None:
    text = (FOLDER / "autoscale.yaml").read_text()
    assert text.count(there) == 1
    others = [document for document in manifests() if document["kind"] != "ScaledObject"]

    assert scaling_faults([*others, yaml.safe_load(text.replace(there, instead))])


def test_command_of_the_comment_prints_a_number(
    server: Redis, prefix: str, monkeypatch: pytest.MonkeyPatch, client: rmq.Client
) -> None:
    text = (FOLDER / "autoscale.yaml").read_text()
    (command,) = re.findall(r"\$\(rmq (.*) \| tail -1\)", text)
    client.topic("hello").send(1)
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.setenv("RMQ_PREFIX", prefix)

    ran = CliRunner().invoke(cli, command.split())

    assert (ran.exit_code, ran.output.splitlines()[-1]) == (0, "1")


# --- as processes ---------------------------------------------------------------------------------

HANDLERS = """
import time
import rmq

client = rmq.Client()

@client.topic("work").handler()
def work(n: int) -> None:
    time.sleep(1)
"""


def status(url: str) -> int:
    """What a probe is answered; 0: nobody listens yet."""
    try:
        return get(url)[0]
    except URLError:
        return 0


@pytest.mark.parametrize("end", ["SIGTERM", pytest.param("SIGKILL", marks=pytest.mark.slow)])
def test_worker_of_the_manifest_answers_its_probes_and_loses_nothing_at_sigterm(
    server: Redis,
    prefix: str,
    spawn: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    end: str,
) -> None:
    """As a kubelet would do it. Negative control: SIGKILL leaves messages in flight."""
    ((spec, container),) = [(s, c) for n, s, c in pods(manifests()) if n == "rmq-worker"]
    (tmp_path / "handlers.py").write_text(HANDLERS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{DEPLOY.parent}")
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.setenv("RMQ_PREFIX", prefix)
    port, (manifest_port,) = free_port(), container["ports"]
    words = [
        word.replace(f"0.0.0.0:{manifest_port['containerPort']}", f"127.0.0.1:{port}")
        for word in container["args"]
    ]
    probes = {
        name: f"http://127.0.0.1:{port}" + container[f"{name}Probe"]["httpGet"]["path"]
        for name in ("startup", "readiness", "liveness")
    }

    running = spawn(*words, from_start=True)
    until(lambda: status(probes["startup"]) == 200, "the startup probe")
    until(lambda: status(probes["readiness"]) == 200, "the readiness probe")
    assert status(probes["liveness"]) == 200
    with rmq.Client(server.url, prefix=prefix) as client:
        ids = {client.topic("work").send(n).id for n in range(60)}
        until(
            lambda: (now := client.admin.stats("work"))["settled"] >= 8 and now["in_flight"] >= 8,
            "the first runs have ended, and others have begun",
        )
        at = time.monotonic()
        running.send_signal(signal.Signals[end])
        code = running.wait()
        took_s = time.monotonic() - at
        counts = client.admin.stats("work")
        waiting = {message.id for message in client.admin.peek("work", 100)}

    if end == "SIGKILL":
        assert code != 0
        assert counts["in_flight"] > 0
        return
    assert code == 0
    assert took_s < spec["terminationGracePeriodSeconds"]
    assert counts["in_flight"] == counts["dead"] == counts["rolled_back"] == 0
    assert counts["settled"] + len(waiting) == len(ids)
    assert 8 <= counts["settled"] < 60, "it stopped in the midst of the work"
    assert waiting < ids


def test_server_of_the_manifest_answers_its_probes_and_stops(
    server: Redis, prefix: str, spawn: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((spec, container),) = [(s, c) for n, s, c in pods(manifests()) if n == "rmq-server"]
    monkeypatch.setenv("RMQ_URL", server.url)
    monkeypatch.setenv("RMQ_PREFIX", prefix)
    monkeypatch.setenv("RMQ_SERVER_TOKEN", "t" * 64)
    port = free_port()
    words = [word.replace(":8800", f":{port}") for word in container["args"]]
    url = f"http://127.0.0.1:{port}"

    running = spawn(*words, from_start=True)
    until(lambda: status(url + container["startupProbe"]["httpGet"]["path"]) == 200, "startup")
    until(lambda: status(url + container["readinessProbe"]["httpGet"]["path"]) == 200, "ready")
    assert status(url + "/metrics") == 401, "Prometheus needs the token"
    at = time.monotonic()
    running.send_signal(signal.SIGTERM)

    assert running.wait() == 0
    assert time.monotonic() - at < spec["terminationGracePeriodSeconds"]
