"""Tests run every code block of the guides and of the pages for operators, and commands on all pages exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flyball.cli.main import app
from tests.docs.pages import ROOT

DOCS = ROOT / "docs"
RUN_FOLDERS = ("get-started", "guides", "operate")

# The tests that run the blocks of a page, and which of them, by the text of their fence.
RUN_BY = {
    "get-started/first-loop.md": ("tests/cli/test_demo.py", {"sh"}),
    "get-started/first-message.md": ("tests/docs/test_guides.py", {"python", "console", "python async"}),
    "guides/adaptive-consumers.md": ("tests/client/adaptive/test_docs.py", {"python"}),
    "guides/admission.md": ("tests/docs/test_admission.py", {"python"}),
    "guides/amqp-clients.md": ("tests/docs/test_guides.py", {"python", "python async", "js", "sh"}),
    "guides/celery.md": ("tests/docs/test_guides.py", {"python", "python caller", "sh"}),
    "guides/domain.md": ("tests/docs/test_guides.py", {"python"}),
    "guides/python-client.md": ("tests/client/test_docs.py", {"python", "python sync"}),
    "guides/spark.md": ("tests/spark_source/test_docs.py", {"python"}),
    "guides/topics.md": ("tests/client/test_docs.py", {"python"}),
    "operate/backup.md": (
        "tests/docs/test_operate.py",
        {"sh export", "sh import", "sh copy", "sh replace", "sh dump", "sh store", "sh restore"},
    ),
    "operate/configure.md": ("tests/docs/test_operate.py", {"toml"}),
    "operate/high-availability.md": ("tests/docs/test_operate.py", {"python", "sh check"}),
    "operate/migrate-from-rabbitmq.md": ("tests/docs/test_operate.py", {"sh", "sh password", "python"}),
    "operate/monitoring.md": ("tests/docs/test_operate.py", {"sh", "sh check", "sh status", "yaml", "yaml rules"}),
    "operate/tls.md": ("tests/docs/test_operate.py", {"sh openssl", "sh user", "sh check", "python", "python async"}),
    "operate/upgrade.md": ("tests/docs/test_operate.py", {"sh"}),
}

# Blocks that no test runs as they are, each with the reason. The commands in them are checked below all the same.
NOT_RUN = {
    ("get-started/install.md", "pip install flyball"): "tests/package/test_wheel.py installs the wheel",
    ("get-started/install.md", "flyball serve --data /var/lib/flyball"): "a folder outside the tests",
    ("guides/admission.md", "flyball pipeline profile traces --out models"): "tests/cli/test_pipeline.py has traces",
    ("guides/admission.md", "pip install 'flyball[auction,pipeline]'"): "takes nine minutes",
    ("guides/domain.md", "[local]"): "tests/broker/cluster/test_domain_page.py reads it",
    ("guides/domain.md", "# domain.toml"): "tests/broker/cluster/test_domain_page.py reads it",
    ("guides/domain.md", "domain of 3 nodes, led by n1"): "output",
    (
        "guides/domain.md",
        "+ node n2, started by local",
    ): "output, compared in tests/broker/cluster/test_domain_page.py",
    ("guides/domain.md", "flyball store --data ./domain"): "tests/broker/cluster/ends/test_walk_through.py",
    ("guides/domain.md", "export FLYBALL_STORE='postgresql://postgres@/postgres?host=...'"): "the same",
    (
        "guides/domain.md",
        "flyball domain cluster create orders --member n1 --member n2 --max-members 4 --provisioner local",
    ): "the same",
    ("guides/domain.md", "flyball domain cluster show orders"): "the same",
    ("operate/configure.md", "flyball serve --config /etc/flyball/flyball.toml"): "a file outside the tests",
    ("operate/systemd.md", "sudo"): "as root; tests/package/test_deploy.py checks the files",
    ("operate/containers.md", "podman"): "tests/package/test_deploy.py checks the files",
    ("operate/containers.md", "echo"): "the same",
    ("operate/containers.md", "cd deploy/compose"): "the same",
    ("operate/kubernetes.md", "# kustomization.yaml"): "needs a cluster",
    ("operate/kubernetes.md", "kubectl apply"): "needs a cluster",
    ("operate/migrate-from-rabbitmq.md", "{"): "an answer",
    ("operate/sizing.md", "python -m bench.versus_rabbitmq --lines 'durable-*,latency' --repeat 3"): "minutes",
    ("operate/troubleshooting.md", "flyball status"): "a live view; tests/cli/test_top.py",
    ("operate/tls.md", "flyball serve --amqps 0.0.0.0:5671 --tls-cert node.crt --tls-key node.key"): "other ports",
}

_BLOCK = re.compile(r"^```(\w[^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_BENCH = re.compile(r"python -m (bench(?:\.\w+)+)([^`\n#|]*)")
_FLYBALL = re.compile(r"(?:^(?:\$ )?|\| |bin/)flyball ((?:[^|;#\n`$()\\]|\\\n)+)")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the fence and the text of each code block of a page."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def test_every_block_is_run_by_a_test_or_says_why_not() -> None:
    missing = []
    for page in [page for folder in RUN_FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]:
        name = str(page.relative_to(DOCS))
        for fence, text in blocks(page):
            first = text.splitlines()[0].split("  #")[0].rstrip()
            is_excused = any(name == each and first.startswith(start) for each, start in NOT_RUN)
            if fence not in RUN_BY.get(name, ("", set()))[1] and not is_excused:
                missing.append(f"{name}: {fence}: {first}")
    assert missing == []


def test_tests_that_run_blocks_name_the_page() -> None:
    missing = []
    for page, (module, _) in RUN_BY.items():
        text = (ROOT / module).read_text(encoding="utf-8")
        if page not in text and Path(page).name not in text and module != "tests/cli/test_demo.py":
            missing.append((page, module))
    assert missing == []


def flyball_commands() -> Iterator[tuple[str, str]]:
    """Yield the `flyball` commands in the blocks of all pages; those of `./run` and `./demo` are such, too."""
    for page in pages():
        for fence, text in blocks(page):
            if fence.split()[0] not in {"sh", "console"}:
                continue
            for line in re.sub(r"^\./(run|demo)", r"flyball \1", text, flags=re.MULTILINE).splitlines():
                for arguments in _FLYBALL.findall(line):
                    yield str(page.relative_to(ROOT)), re.sub(r"^run\b", "serve", arguments.strip())


@pytest.mark.parametrize(("page", "arguments"), sorted(set(flyball_commands())))
def test_flyball_command_of_a_page_parses(page: str, arguments: str) -> None:
    # Options are parsed before help is shown: an unknown command or option fails.
    result = CliRunner().invoke(app, [*shlex.split(arguments.split("...")[0]), "--help"])
    assert result.exit_code == 0, f"{page}: {result.output}"


def test_benchmarks_that_pages_name_exist_with_their_options() -> None:
    wrong = []
    for page in [*pages(), ROOT / "CONTRIBUTING.md"]:
        for module, arguments in _BENCH.findall(page.read_text(encoding="utf-8")):
            path = ROOT / module.replace(".", "/")
            source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__main__.py"
            if not source.exists():
                wrong.append((str(page.relative_to(ROOT)), module))
                continue
            options = re.findall(r"--[a-z][\w-]*", arguments)
            text = source.read_text(encoding="utf-8")
            wrong += [(str(page.relative_to(ROOT)), f"{module} {option}") for option in options if option not in text]
    assert wrong == []


def test_scripts_that_pages_name_exist() -> None:
    names = {
        (str(page.relative_to(ROOT)), name)
        for page in [*pages(), ROOT / "CONTRIBUTING.md"]
        for name in re.findall(r"(?<![\w/.])scripts/[\w-]+", page.read_text(encoding="utf-8"))
    }
    assert [(page, name) for page, name in names if not (ROOT / name).exists()] == []
