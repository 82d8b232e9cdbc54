"""Checks that no module of Paceline imports from a layer above its own.

The layers are those of `LAYERS`, lowest first. A module that no layer names (the root
`__init__.py`, `distribute.py`, `nn.py`, ...) belongs to the public namespaces, which stand above
the whole implementation and below the programs that use them. Every import counts, also one
inside a function or under `TYPE_CHECKING`.

Usage: python scripts/layers.py [source folder that holds `paceline`]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = "paceline"
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"errors", "types", "config", "devices"}),
    frozenset({"program"}),
    frozenset({"variables"}),
    frozenset({"store"}),
    frozenset({"pace"}),
    frozenset({"data", "datasets"}),
    frozenset({"virtual"}),
    frozenset({"cluster"}),
    frozenset({"monitor"}),
    frozenset({"strategies"}),
    frozenset({"coordinator"}),
    frozenset({"training"}),
    frozenset({"checkpoint"}),
    frozenset({"comparison"}),
    # The root re-exports `testing`, and `testing` may use every namespace, so they are level.
    frozenset({"(public namespaces)", "testing"}),
    frozenset({"cli", "__main__"}),
)
NAMESPACES = len(LAYERS) - 2


class Import(NamedTuple):
    """One import: the line it stands on and the full dotted name that it reaches."""

    line: int
    name: str


def rank(module: str) -> int:
    """Returns the layer of a dotted module name; 0 is the lowest."""
    parts = module.split(".")
    part = parts[1] if len(parts) > 1 else ""
    return next((i for i, layer in enumerate(LAYERS) if part in layer), NAMESPACES)


def module_name(path: Path, source: Path) -> str:
    """Returns the dotted name of the module in `path`."""
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, source: Path) -> Iterator[Import]:
    """Yields the imports of Paceline in one file, wherever they stand in it."""
    package = ".".join(path.parent.relative_to(source).parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.stmt | ast.expr):
            for name in _reached(node, package):
                if name.split(".")[0] == PACKAGE:
                    yield Import(node.lineno, name)


def _reached(node: ast.stmt | ast.expr, package: str) -> list[str]:
    """Returns the full names of the modules that a statement or call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = _absolute(node, package)
        # `from paceline import errors` reaches the module, not only the package's root.
        return [f"{base}.{alias.name}" if base == PACKAGE else base for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).split(".")[-1]
        return [str(node.args[0].value)] if called in {"import_module", "__import__"} else []
    return []


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parents = package.split(".")
    base = parents[: len(parents) - node.level + 1]
    return ".".join([*base, node.module] if node.module else base)


def violations(source: Path) -> list[str]:
    """Returns one line, `file:line: what`, for each import that points upwards."""
    found = []
    for path in sorted((source / PACKAGE).rglob("*.py")):
        module = module_name(path, source)
        found += [
            f"{path}:{line}: {module} imports {name}, which is in a layer above it"
            for line, name in imports(path, source)
            if rank(name) > rank(module)
        ]
    return found


def main() -> int:
    """Prints the violations and returns the exit status."""
    default = Path(__file__).resolve().parent.parent / "src"
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else default
    if not (source / PACKAGE).is_dir():
        print(f"The source folder must hold the package {PACKAGE}. Received: {source}")
        return 2
    found = violations(source)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
