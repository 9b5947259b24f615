"""A node runs with what is installed with it, not with what only tests or an extra bring; imports have no cycles."""

from __future__ import annotations

import ast
import graphlib
import json
import runpy
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]

# Packages that need an extra, and name it in an error of their own.
WITH_EXTRAS = (
    "flyball.admission.sensors",
    "flyball.cli.auction",
    "flyball.cli.demo_story",
    "flyball.cli.control_commands",
    "flyball.client.adaptive",
    "flyball.control",
    "flyball.lab",
    "flyball.pipeline",
    "flyball.spark_source",
)

IMPORT_ALL = """
import importlib, json, pkgutil, sys
forbidden, left_out = json.loads(sys.argv[1])

class Forbidding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in forbidden:
            raise ModuleNotFoundError(f"{name} is not installed with a node", name=name)

sys.meta_path.insert(0, Forbidding)

def names(package):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not module.name.startswith(tuple(left_out)) and not module.name.endswith("__main__"):
            yield module.name
            if module.ispkg:
                yield from names(importlib.import_module(module.name))

print(len([importlib.import_module(name) for name in names(importlib.import_module("flyball"))]))
"""


def test_a_node_needs_only_what_is_installed_with_it() -> None:
    installed = brought_by("flyball")
    forbidden = [
        name
        for name, distributions in packages_distributions().items()
        if not installed & {canonicalize_name(distribution) for distribution in distributions}
    ]
    assert {"pytest", "pandas", "control"} <= set(forbidden)
    arguments = json.dumps([forbidden, WITH_EXTRAS])
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, arguments], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 200


def test_no_modules_import_each_other() -> None:
    """Imports for types only, and in functions, count: a cycle says that a concept is in the wrong module."""
    cycle: list[str] = []
    try:
        graphlib.TopologicalSorter(import_graph()).prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1]
    assert not cycle, f"imported in a circle: {' <- '.join(cycle)}"


def import_graph() -> Mapping[str, set[str]]:
    code_map = runpy.run_path(str(ROOT / "scripts" / "code-map"), run_name="code_map")
    modules = code_map["modules_of"](ROOT / "src")
    return {
        module: {*code_map["imports_of"](ast.parse(path.read_text(encoding="utf-8")), modules)} - {module}
        for module, path in modules.items()
    }


def brought_by(distribution: str) -> set[str]:
    """Return a distribution and all that its installation brings, without extras that were not asked for."""
    found: set[str] = set()
    looked_at = [(distribution, frozenset[str]())]
    while looked_at:
        name, extras = looked_at.pop()
        found.add(canonicalize_name(name))
        for text in requires(name) or []:
            needed = Requirement(text)
            is_wanted = needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in extras | {""}
            )
            if is_wanted and canonicalize_name(needed.name) not in found:
                looked_at.append((needed.name, frozenset(needed.extras)))
    return found
