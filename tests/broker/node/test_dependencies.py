"""A node runs with what is installed with it: nothing that only the tests or an extra bring."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WITH_EXTRAS = (
    "flyball.admission.sensors",
    "flyball.cli.auction",
    "flyball.cli.demonstration",
    "flyball.cli.governor",
    "flyball.client.adaptive",
    "flyball.control",
    "flyball.lab",
    "flyball.pipeline",
    "flyball.spark_source",
)
"""What says itself which extra it needs."""

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
