"""Reference pages follow the code: generated ones are up to date, others have the columns of the schema."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from flyball.trace.schema import ADMISSION_SCHEMA, CALL_SCHEMA, SAMPLE_SCHEMA, SCHEMA

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"

GENERATED = ("commands.md", "http-requests.md", "metrics.md", "settings.md")

# The names of types on the page of traces.
TYPES = {"text": (pa.types.is_dictionary,), "integer": (pa.types.is_int64,), "number": (pa.types.is_float64,)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference pages, generated again."""
    docs = tmp_path_factory.mktemp("docs")
    shutil.copytree(REFERENCE, docs / "reference")
    subprocess.run([sys.executable, ROOT / "scripts" / "generate-reference", docs], check=True)
    return docs / "reference"


@pytest.mark.parametrize("name", GENERATED)
def test_generated_page_is_that_of_the_code(made: Path, name: str) -> None:
    current = (REFERENCE / name).read_text(encoding="utf-8")
    assert current == (made / name).read_text(encoding="utf-8"), "run scripts/generate-reference"


@pytest.mark.parametrize(
    ("heading", "schema"),
    [("Columns", SCHEMA), ("Calls", CALL_SCHEMA), ("Samples", SAMPLE_SCHEMA), ("Admissions", ADMISSION_SCHEMA)],
)
def test_trace_page_has_the_columns_of_the_schema_in_order(heading: str, schema: pa.Schema) -> None:
    page = (REFERENCE / "traces.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", section, flags=re.MULTILINE)
    assert [name for name, _ in rows] == schema.names
    wrong = [name for name, kind in rows if not any(fits(schema.field(name).type) for fits in TYPES[kind])]
    assert wrong == []
