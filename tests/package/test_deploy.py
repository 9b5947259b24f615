"""The files in `deploy` and the Containerfile say what their tools accept and what a node does."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from flyball.broker.settings import Address, load_settings, options
from flyball.cli.serve import OPERATOR_NEEDED, SYSTEM_FILE, WRONG_USE
from tests.package.conftest import ROOT

DEPLOY = ROOT / "deploy"
SYSTEMD = DEPLOY / "systemd"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = DEPLOY / "compose"
KUBERNETES_VERSION = "1.31"

# Settings of the unit without which a node could do more than it has to.
SANDBOX = {
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "MemoryDenyWriteExecute": "yes",
    "RestrictAddressFamilies": "AF_INET AF_INET6 AF_UNIX",
    "UMask": "0077",
}


class Unit(RawConfigParser):
    """A unit of systemd, in which a key may occur several times: the last one counts here."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None)
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read_string(path.read_text())


# systemd


def test_unit_has_the_sandbox_and_the_protocol_of_the_node() -> None:
    service = Unit(SYSTEMD / "flyball.service")["Service"]
    assert {name: service.get(name) for name in SANDBOX} == SANDBOX
    assert (service["Type"], service["NotifyAccess"], service["KillMode"]) == ("notify", "main", "mixed")
    assert float(service["WatchdogSec"]) > 0
    assert service["RestartPreventExitStatus"] == f"{WRONG_USE} {OPERATOR_NEEDED}"
    assert service["ExecStart"] == "/usr/bin/flyball serve"
    name, _, value = service["Environment"].partition("=")
    assert name in {option.variable for option in options()}
    assert value == f"/var/lib/{service['StateDirectory']}"
    assert str(SYSTEM_FILE) == f"/etc/{service['ConfigurationDirectory']}/flyball.toml"


def test_open_files_of_the_unit_suffice_for_its_connections() -> None:
    assert int(Unit(SYSTEMD / "flyball.service")["Service"]["LimitNOFILE"]) > load_settings({}, {}).max_connections


@pytest.mark.parametrize("name", ["amqp", "http"])
def test_socket_unit_is_named_as_the_listener_and_has_its_address(name: str) -> None:
    unit = Unit(SYSTEMD / f"flyball-{name}.socket")["Socket"]
    assert unit["FileDescriptorName"] == name
    assert Address.parse(unit["ListenStream"]) == getattr(load_settings({}, {}), name)
    assert unit["Service"] == "flyball.service"


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    units = [path for path in SYSTEMD.iterdir() if path.suffix in (".service", ".socket")]
    for path in units:
        # The program is not installed at its place here.
        (tmp_path / path.name).write_text(path.read_text().replace("/usr/bin/flyball serve", "/bin/true"))
    command = ["systemd-analyze", "verify", *[str(tmp_path / path.name) for path in units]]
    found = subprocess.run(command, capture_output=True, text=True)
    about_these = [line for line in found.stderr.splitlines() if "flyball" in line]
    assert (found.returncode, about_these) == (0, [])


def test_systemd_finds_little_exposed() -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", "--no-pager"]
    found = subprocess.run([*command, str(SYSTEMD / "flyball.service")], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-2000:]


# Containers


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile with their arguments."""
    lines = [line for line in (ROOT / "Containerfile").read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in joined.splitlines()) if name]


def final_stage() -> dict[str, str]:
    found = instructions()
    last = max(number for number, (name, _) in enumerate(found) if name == "FROM")
    return dict(found[last:])


def test_container_is_built_in_stages_and_runs_without_root() -> None:
    assert [name for name, _ in instructions()].count("FROM") == 2
    stage = final_stage()
    assert stage["USER"] == "10001:10001"
    assert stage["VOLUME"] == "/var/lib/flyball"
    assert stage["STOPSIGNAL"] == "SIGTERM"
    # The exec form: signals reach the node, not a shell.
    assert (json.loads(stage["ENTRYPOINT"]), json.loads(stage["CMD"])) == (["flyball"], ["serve"])
    assert "/health/ready" in stage["HEALTHCHECK"]
    json.loads(stage["HEALTHCHECK"].partition("CMD ")[2])


def test_settings_of_the_container_are_valid() -> None:
    variables = dict(each.split("=", 1) for each in final_stage()["ENV"].split())
    settings = load_settings({}, variables)
    assert str(settings.data) == final_stage()["VOLUME"]
    exposed = [int(port) for port in final_stage()["EXPOSE"].split()]
    assert settings.amqp is not None
    assert settings.http is not None
    assert [settings.amqp.port, settings.http.port] == exposed


def test_files_that_the_container_copies_exist_and_are_not_ignored() -> None:
    ignored = (ROOT / ".containerignore").read_text().splitlines()
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert f"!{source}" in ignored or f"!{source.rstrip('/')}" in ignored, source


# Compose


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((COMPOSE / "compose.yaml").read_text())
    return found


def test_compose_names_files_volumes_and_secrets_that_exist() -> None:
    document = compose()
    for name, service in document["services"].items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (COMPOSE / source).exists() if source.startswith(".") else source in document["volumes"], name
        assert set(service.get("secrets", [])) <= document["secrets"].keys()
        assert set(service.get("depends_on", [])) <= document["services"].keys()
        # Only this machine reaches the ports.
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_sets_settings_that_exist() -> None:
    environment = compose()["services"]["flyball"]["environment"]
    assert environment.keys() <= {option.variable for option in options()}
    load_settings({}, environment)


def test_no_password_is_in_the_files() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and path.parent.name != "secrets":
            assert not re.search(r"password[\"']?\s*[:=]\s*[\"']?[\w]{6,}", path.read_text(), re.IGNORECASE), path


def test_prometheus_scrapes_the_node_and_has_the_alerts_of_the_page() -> None:
    configuration = yaml.safe_load((COMPOSE / "prometheus.yml").read_text())
    (job,) = configuration["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["flyball:15672"]}]
    page = (ROOT / "docs" / "operate" / "monitoring.md").read_text()
    shown = re.search(r"```yaml rules\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert (DEPLOY / "prometheus" / "flyball-rules.yml").read_text() == shown[1]


def test_grafana_gets_its_source_and_dashboards() -> None:
    (source,) = yaml.safe_load((COMPOSE / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((COMPOSE / "grafana" / "dashboards.yaml").read_text())["providers"]
    mounted = [volume.split(":")[1] for volume in compose()["services"]["grafana"]["volumes"]]
    assert f"{provider['options']['path']}/flyball.json" in mounted


# Kubernetes


def objects() -> Iterator[dict[str, Any]]:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    for name in kustomization["resources"]:
        yield from yaml.safe_load_all((KUBERNETES / name).read_text())


def test_kustomization_names_every_file() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())
    named = [*kustomization["resources"], *kustomization["configMapGenerator"][0]["files"], "kustomization.yaml"]
    assert sorted(named) == sorted(path.name for path in KUBERNETES.iterdir())


@pytest.mark.parametrize("found", list(objects()), ids=lambda found: f"{found['kind']}-{found['metadata']['name']}")
def test_object_of_kubernetes_fits_its_schema(found: dict[str, Any]) -> None:
    (labels,) = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["labels"]
    if found["kind"] == "StatefulSet":
        # As kustomize does.
        found["spec"]["selector"]["matchLabels"] = labels["pairs"]
        found["spec"]["template"]["metadata"]["labels"] = labels["pairs"]
    kubernetes_validate.validate(found, KUBERNETES_VERSION, strict=True)


def test_pod_runs_as_the_user_of_the_image_with_its_settings() -> None:
    (pod,) = [found["spec"]["template"]["spec"] for found in objects() if found["kind"] == "StatefulSet"]
    user, _, group = final_stage()["USER"].partition(":")
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"], security["fsGroup"]) == (int(user), int(group), int(group))
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["settings"] == str(SYSTEM_FILE.parent)
    environment = {each["name"]: each.get("value", "flyball-0") for each in container["env"]}
    assert environment["FLYBALL_DATA"].startswith(mounts["data"])
    load_settings({}, environment)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"amqp": 5672, "http": 15672}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health/ready", "port": "http"}
    assert container["livenessProbe"]["httpGet"] == {"path": "/health/live", "port": "http"}


def test_memory_of_the_pod_fits_its_settings() -> None:
    file = KUBERNETES / "flyball.toml"
    settings = load_settings({"config": str(file)}, {})
    assert tomllib.loads(file.read_text())["limits"].keys() == {"memory_bytes", "resident_bytes"}
    (pod,) = [found["spec"]["template"]["spec"] for found in objects() if found["kind"] == "StatefulSet"]
    limit = int(pod["containers"][0]["resources"]["limits"]["memory"].removesuffix("Mi"))
    assert limit << 20 >= settings.memory_bytes + settings.resident_bytes + (256 << 20) + (512 << 20)
