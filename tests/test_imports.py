"""The direction of imports: a layer of the package imports itself and the layers listed before it.

The layers are those of docs/architecture.md. ``LAYERS`` lists their order, ``LAYER_OF`` says which
layer a module belongs to, and ``BREACHES`` lists today's imports against the order. That set may
only shrink: a new breach fails the test, and so does a listed one that no longer exists.
"""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "topocaps"

#: Every layer may import from the layers before it.
LAYERS = (
    "foundation",
    "latents",
    "data",
    "models",
    "capsules",
    "training",
    "metrics",
    "study",
    "papers",
    "integrations",
    "cli",
)

#: Modules and subpackages by layer; the longest name that contains a module decides.
LAYER_OF = {
    "topocaps": "cli",
    "topocaps.__main__": "cli",
    "topocaps.capsules": "capsules",
    "topocaps.cli": "cli",
    "topocaps.data": "data",
    "topocaps.device": "foundation",
    "topocaps.errors": "foundation",
    "topocaps.integrations": "integrations",
    "topocaps.io": "foundation",
    "topocaps.latents": "latents",
    "topocaps.metrics": "metrics",
    "topocaps.models": "models",
    "topocaps.papers": "papers",
    "topocaps.references": "foundation",
    "topocaps.study": "study",
    "topocaps.training": "training",
    "topocaps.version": "foundation",
}

#: (module, module that it imports) against the order.
BREACHES: set[tuple[str, str]] = set()


def module_name(path, root):
    """Return the dotted name of a source file; a package's is that of its folder."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(root):
    """Return the path of every module of the package in ``root``, by dotted name."""
    return {module_name(path, root): path for path in sorted(root.rglob("*.py"))}


def imported_modules(name, path, modules):
    """Return the modules of the package that a module imports anywhere, functions included.

    ``from package import name`` counts as an import of ``package.name`` where that is a module,
    and of ``package`` otherwise. Calls of ``import_module`` with a string count too.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                member = f"{base}.{alias.name}"
                found.add(member if member in modules else base)
        elif isinstance(node, ast.Call) and node.args:
            function = getattr(node.func, "attr", getattr(node.func, "id", None))
            argument = node.args[0]
            if function in ("import_module", "__import__") and isinstance(argument, ast.Constant):
                found.add(argument.value)
    return found & set(modules)


def layer_of(module):
    """Return the layer of a module, or None where no entry of ``LAYER_OF`` contains it."""
    while module not in LAYER_OF:
        module = module.rpartition(".")[0]
        if module in ("", PACKAGE.name):
            return None
    return LAYER_OF[module]


def breaches(root):
    """Return every import from a layer that comes later in ``LAYERS``."""
    modules = sources(root)
    return {
        (name, other)
        for name, path in modules.items()
        for other in imported_modules(name, path, modules)
        if LAYERS.index(layer_of(other)) > LAYERS.index(layer_of(name))
    }


def test_every_module_has_a_layer():
    modules = sources(PACKAGE)
    assert not [name for name in modules if layer_of(name) not in LAYERS]
    assert set(LAYER_OF) <= set(modules), "LAYER_OF names modules that do not exist"


def test_imports_follow_the_order_of_the_layers():
    found = breaches(PACKAGE)
    assert not found - BREACHES, "new imports against the order of the layers"
    assert not BREACHES - found, "these breaches no longer exist: remove them from BREACHES"


@pytest.mark.parametrize(
    "source",
    [
        "import topocaps.cli",
        "import topocaps.cli as command",
        "from topocaps import cli",
        "from topocaps.cli import main",
        "from .. import cli",
        "from ..cli import main",
        "def later():\n    from topocaps.cli import main",
        "if TYPE_CHECKING:\n    from topocaps.cli import main",
        "importlib.import_module('topocaps.cli')",
        "import_module('topocaps.cli')",
        "__import__('topocaps.cli')",
    ],
)
def test_every_form_of_import_is_found(source, tmp_path):
    root = tmp_path / "topocaps"
    (root / "latents").mkdir(parents=True)
    for name in ("__init__.py", "cli.py", "latents/__init__.py"):
        (root / name).write_text("")
    (root / "latents" / "pooling.py").write_text(source)
    modules = sources(root)
    name = "topocaps.latents.pooling"
    assert "topocaps.cli" in imported_modules(name, modules[name], modules)
