"""Every module can be imported and has docstrings; `make lint` checks what modules may import."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "jobs").rglob("*.py"))
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def module_name(source: Path) -> str:
    """Return the dotted name of a source file."""
    parts = source.relative_to(ROOT / "jobs").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def public(tree: ast.Module) -> Iterator[Documented]:
    """Yield the functions and classes that other modules may use."""
    for node in tree.body:
        if isinstance(node, Documented) and not node.name.startswith("_"):
            yield node


STORAGE = ROOT / "jobs" / "grouptrail" / "storage"
DELTA = re.compile(r"""format\(["']delta|delta\.[`{]|USING delta""")
each_source = pytest.mark.parametrize("source", SOURCES, ids=module_name)


@each_source
def test_module_can_be_imported(source: Path) -> None:
    """No session and no broker is needed."""
    assert importlib.import_module(module_name(source)).__file__ == str(source)


@each_source
def test_module_and_its_public_names_have_docstrings(source: Path) -> None:
    """The module and every public function and class have a docstring."""
    tree = ast.parse(source.read_text("utf-8"))
    assert ast.get_docstring(tree)
    assert [node.name for node in public(tree) if not ast.get_docstring(node)] == []


def test_only_storage_reads_or_writes_delta_with_spark() -> None:
    """Imports of delta-rs and of Delta's Python API are forbidden by import-linter."""
    named = [source for source in SOURCES if DELTA.search(source.read_text("utf-8"))]
    assert named
    assert [str(source) for source in named if STORAGE not in source.parents] == []


def test_only_the_top_takes_the_whole_configuration() -> None:
    """Other rooms take a Warehouse, their own section of the settings, or plain values."""
    top = ("cli", "config", "jobs.py", "runtime")
    taking = [
        f"{source.relative_to(ROOT)}: {node.name}"
        for source in SOURCES
        if source.relative_to(ROOT / "jobs" / "grouptrail").parts[0] not in top
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None and re.search(r"\bConfig\b", ast.unparse(argument.annotation))
    ]
    assert taking == []


DEPLOY = {"servers": 0, "bench": 1, "demo": 1, "soak": 2}
"""The folders of deploy/ by floor: each imports only from lower ones."""


@pytest.mark.parametrize("folder", DEPLOY)
def test_folder_of_deploy_imports_only_lower_folders(folder: str) -> None:
    imported = {
        name.split(".")[0]
        for source in (ROOT / "deploy" / folder).glob("*.py")
        for node in ast.walk(ast.parse(source.read_text("utf-8")))
        for name in imported_names(node)
    }
    others = (DEPLOY.keys() & imported) - {folder}
    assert {other for other in others if DEPLOY[other] >= DEPLOY[folder]} == set()


def imported_names(node: ast.AST) -> list[str]:
    """Return the modules that an import statement names; nothing for other nodes."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [one.name for one in node.names] if isinstance(node, ast.Import) else []


def test_queries_start_without_pyarrow() -> None:
    """It and what it imports take four times as long to import as all the rest of `grouptrail sql`."""
    heavy = "{'pyarrow', 'numpy', 'pandas', 'pyspark'}"
    code = f"import sys, grouptrail.query.sql; print({heavy} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
