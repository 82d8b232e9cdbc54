"""Writes docs/reference.md from the docstrings of the public names.

`python scripts/reference.py` writes the file; with `--check`, as in scripts/check, it fails while
the file differs.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

NAMESPACES = (
    "paceline",
    "paceline.config",
    "paceline.distribute",
    "paceline.distribute.experimental",
    "paceline.distribute.coordinator",
    "paceline.distribute.cluster_resolver",
    "paceline.distribute.partitioners",
    "paceline.cluster",
    "paceline.pace",
    "paceline.update_rules",
    "paceline.placing",
    "paceline.data",
    "paceline.nn",
    "paceline.train",
    "paceline.monitor",
    "paceline.keras.models",
    "paceline.keras.layers",
    "paceline.testing",
    "paceline.datasets.digits",
    "paceline.errors",
)
# Namespaces that hold more than what is described there: names of Keras, second names, and what is
# only for those who write a pace.
OWN = {
    "paceline.distribute.experimental": (
        "CentralStorageStrategy",
        "CommunicationImplementation",
        "CommunicationOptions",
        "ValueContext",
    ),
    "paceline.distribute.coordinator": (
        "ClusterCoordinator",
        "PerWorkerDataset",
        "PerWorkerIterator",
        "PerWorkerValues",
        "RemoteValue",
        "experimental_get_current_worker_index",
    ),
    "paceline.pace": ("Asynchronous", "BoundedStaleness", "Softsync", "Synchronous"),
    "paceline.keras.models": ("Model", "Sequential"),
    "paceline.keras.layers": ("BatchNormalization", "Embedding"),
    "paceline.datasets.digits": ("load_data",),
}
# Members that one layer of the package offers to another, not to users.
INTERNAL = {
    "adopt", "array", "backpressure", "effective_aggregation", "follow", "forget",
    "is_aggregation_assumed", "is_declared", "is_on_read", "is_optimizer_state", "is_seed_state",
    "is_shared", "join", "join_stacked", "logical_value", "make_variable", "num_components",
    "num_shards", "on_worker", "open", "parse", "place", "place_stacked", "placement",
    "server_device", "settle", "shapes", "sharding", "stacked", "storage_dtype", "storage_shape",
    "store", "tree_flatten", "tree_unflatten", "welcome", "written_storage",
}  # fmt: skip
# Of the same name, and meant for users.
SHOWN = {("ClusterCoordinator", "join")}
FILE = Path(__file__).parent.parent / "docs" / "reference.md"
HEAD = """# Reference

Made from the docstrings by `python scripts/reference.py`. `paceline.keras` holds everything of
Keras; its optimizers, losses, models, `BatchNormalization` and `Embedding` follow the current
strategy.
`paceline.optimizers` are the optimizers of `paceline.keras`.
"""


def public_names(namespace: Any) -> list[str]:
    """The names a namespace offers, without sub-namespaces."""
    name = namespace.__name__
    if name in OWN:
        return list(OWN[name])
    listed = getattr(namespace, "__all__", None)
    if listed is None:
        listed = [
            key
            for key, value in vars(namespace).items()
            if not key.startswith("_") and getattr(value, "__module__", None) == name
        ]
    return sorted(key for key in listed if not inspect.ismodule(getattr(namespace, key)))


def entry(name: str, value: Any) -> str:
    """One name: its signature and its docstring."""
    lines = [f"### `{name}{signature(value)}`", ""]
    doc = inspect.getdoc(value) or ""
    lines.append(fenced_sections(doc))
    if inspect.isclass(value) and not issubclass(value, (enum.Enum, BaseException)):
        for key, member in sorted(vars(value).items()):
            target = member.fget if isinstance(member, property) else member
            is_internal = key in INTERNAL and (value.__name__, key) not in SHOWN
            is_hidden = key.startswith("_") or is_internal
            if is_hidden or not callable(target) or not inspect.getdoc(target):
                continue
            first = (inspect.getdoc(target) or "").split("\n\n")[0].replace("\n", " ")
            shown = "" if isinstance(member, property) else bare_signature(target)
            lines.append(f"- `{key}{shown}`: {first}")
    return "\n".join(lines).rstrip() + "\n"


def bare_signature(method: Any) -> str:
    """The parameters of a method, without `self`."""
    return signature(method).replace("(self, ", "(").replace("(self)", "()")


def signature(value: Any) -> str:
    """The parameters, without annotations."""
    if inspect.isclass(value) and issubclass(value, (enum.Enum, BaseException)):
        return ""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return str(inspect.Signature(bare))


def fenced_sections(doc: str) -> str:
    """Keeps the layout of Args, Returns and Raises in Markdown."""
    lines, in_section, in_code = [], False, False
    for line in doc.splitlines():
        in_code ^= line.strip().startswith("```")
        if in_code:
            lines.append(line)
            continue
        is_head = line.rstrip() in ("Args:", "Returns:", "Raises:", "Attributes:", "Semantics:")
        if is_head:
            lines += ["", f"**{line.rstrip()}**", ""]
            in_section = line.rstrip() in ("Args:", "Raises:", "Attributes:")
        elif in_section and line.startswith("    ") and not line.startswith("     "):
            lines.append(f"- {line.strip()}")
        else:
            lines.append(line.strip())
    return "\n".join(lines).strip() + "\n"


def reference() -> str:
    """The whole page."""
    parts = [HEAD]
    for path in NAMESPACES:
        namespace = importlib.import_module(path)
        parts.append(f"## `{path}`\n")
        doc = (inspect.getdoc(namespace) or "").split("\n\n")[0]
        if path != "paceline" and doc:
            parts.append(doc + "\n")
        for key in public_names(namespace):
            value = getattr(namespace, key)
            parts.append(entry(f"{path}.{key}", value))
    return "\n".join(parts)


if __name__ == "__main__":
    if "--check" not in sys.argv:
        FILE.write_text(reference(), encoding="utf-8")
    elif FILE.read_text(encoding="utf-8") != reference():
        sys.exit(f"{FILE} is not what the docstrings say. To write it: python scripts/reference.py")
