"""The generated modules are those that their descriptions give."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
WIRE = ROOT / "src" / "flyball" / "broker" / "wire"


def test_generated_modules_match_their_descriptions(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "generate-wire"), str(tmp_path)], check=True)
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py"))
    kept = [path.relative_to(WIRE) for path in WIRE.glob("*/_generated/*.py") if path.name != "__init__.py"]
    assert made == sorted(kept)
    for path in made:
        assert (tmp_path / path).read_text(encoding="utf-8") == (WIRE / path).read_text(encoding="utf-8"), path
