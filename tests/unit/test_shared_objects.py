"""Objects get all attributes in their constructor, and no code creates their `__dict__`.

`nyala.lazy_values` explains the reason. An instance has room for 30 attributes. With more, CPython 3.11
creates its `__dict__`. This is safe in the constructor, because no other thread has the object yet.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import nyala
import pyspark_nyala

PACKAGES: Final = (Path(nyala.__file__).parent, Path(pyspark_nyala.__file__).parent)
CONSTRUCTORS: Final = ("__init__", "__new__", "__post_init__", "__setstate__")
SETTERS: Final = ("object.__setattr__", "setattr", "delattr")
COPIES: Final = ("vars", "copy.copy", "copy.deepcopy", "copy.replace")
SUSPECTS: Final = (
    "cached_property",
    "__dict__",
    "vars",
    "copy",
)  # only modules with these words are searched

Method = ast.FunctionDef | ast.AsyncFunctionDef


def dotted(node: ast.expr) -> str:
    """Return an expression of names such as `a.b.c` as text, or "". Faster than `ast.unparse`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return before and f"{before}.{node.attr}"
    return ""


def methods(cls: ast.ClassDef) -> dict[str, Method]:
    return {node.name: node for node in cls.body if isinstance(node, Method)}


def is_dataclass(cls: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list)


def own_names(method: Method) -> set[str]:
    """Return the names that the method uses for its object: the first argument, or what `__new__` returns."""
    if method.name == "__new__":
        return {dotted(n.value) for n in ast.walk(method) if isinstance(n, ast.Return) and n.value} - {""}
    return {argument.arg for argument in (method.args.posonlyargs + method.args.args)[:1]}


def attributes_set(method: Method) -> Iterator[tuple[str, int]]:
    """Yield (attribute, line) for each attribute of its object that the method sets or deletes."""
    own = own_names(method)
    for node in ast.walk(method):
        if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
            if dotted(node.value) in own:
                yield node.attr, node.lineno
        elif isinstance(node, ast.Call) and dotted(node.func) in SETTERS and len(node.args) > 1:
            if dotted(node.args[0]) in own:
                name = node.args[1]
                yield str(name.value) if isinstance(name, ast.Constant) else ast.unparse(name), node.lineno


def methods_called(method: Method) -> Iterator[str]:
    """Yield the names of the methods of its own object that the method calls."""
    own = own_names(method)
    for node in ast.walk(method):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if dotted(node.func.value) in own:
                yield node.func.attr


def creations_of_dict(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of code that creates, or may create, the `__dict__` of an instance."""
    imports = (node for node in ast.walk(module) if isinstance(node, ast.Import))
    modules = {(name.asname or name.name).partition(".")[0] for node in imports for name in node.names}
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and node.attr in ("cached_property", "__dict__"):
            yield node.lineno, node.attr
        elif isinstance(node, ast.alias) and node.name == "cached_property":
            yield node.lineno, node.name
        elif isinstance(node, ast.Call) and dotted(node.func) in COPIES:
            if not node.args or dotted(node.args[0]).partition(".")[0] not in modules:
                yield node.lineno, dotted(node.func)


class Sources:
    """The parsed modules and classes of Python sources, which are given by path."""

    def __init__(self, sources: dict[str, str]) -> None:
        self.sources = sources
        self.modules = {path: ast.parse(source) for path, source in sources.items()}
        self.classes_of = {
            path: [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]
            for path, module in self.modules.items()
        }
        self.classes: dict[str, list[ast.ClassDef]] = {}
        for cls in itertools.chain(*self.classes_of.values()):
            self.classes.setdefault(cls.name, []).append(cls)

    def constructed(self, cls: ast.ClassDef) -> set[str]:
        """Return the attributes that the constructor of the class and those of its base classes set."""
        found: set[str] = set()
        for base in cls.bases:
            name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
            for parent in self.classes.get(name, []) if name != cls.name else ():
                found |= self.constructed(parent)
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and is_dataclass(cls):
                found.add(ast.unparse(node.target))
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
                found |= set(ast.literal_eval(node.value))
        of = methods(cls)
        todo = [name for name in CONSTRUCTORS if name in of]
        for name in todo:  # includes the methods that they call
            found |= {attribute for attribute, _ in attributes_set(of[name])}
            todo += {call for call in methods_called(of[name]) if call in of and call not in todo}
        return found

    def faults(self) -> list[str]:
        found = []
        for path, module in self.modules.items():
            suspected = any(word in self.sources[path] for word in SUSPECTS)
            for line, what in creations_of_dict(module) if suspected else ():
                found.append(f"{path}:{line}: {what} creates the __dict__ of an instance")
            for cls in self.classes_of[path]:
                constructed = self.constructed(cls)
                for name, line in (
                    write for method in methods(cls).values() for write in attributes_set(method)
                ):
                    if name not in constructed:
                        found.append(f"{path}:{line}: {cls.name}.{name} is not set in the constructor")
        return sorted(found)


def test_objects_get_their_attributes_in_their_constructor() -> None:
    sources = {
        str(path): path.read_text()
        for folder in PACKAGES
        for path in folder.rglob("*.py")
        # The constructor of SQLAlchemy's compiler calls the methods of this subclass.
        if path.parts[-2:] != ("sqlalchemy", "compiler.py")
    }
    assert len(sources) > 250
    assert Sources(sources).faults() == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("from functools import cached_property", "cached_property"),
        (
            "import functools\nclass A:\n    @functools.cached_property\n    def x(self): ...",
            "cached_property",
        ),
        ("def f(a): return a.__dict__", "__dict__"),
        ("def f(a): return vars(a)", "vars"),
        ("import copy\ndef f(a): return copy.copy(a)", "copy.copy"),
        ("class A:\n    def late(self): self.x = 1", "A.x"),
        ("class A:\n    x = None\n    def late(self): self.x = 1", "A.x"),
        ("class A:\n    def late(this): this.x += 1", "A.x"),
        ("@dataclass(frozen=True)\nclass A:\n    def late(self): object.__setattr__(self, 'x', 1)", "A.x"),
        ("class A:\n    def late(self): setattr(self, 'x', 1)", "A.x"),
    ],
)
def test_an_attribute_that_is_set_later_is_reported(source: str, fault: str) -> None:
    (found,) = Sources({"module": source}).faults()
    assert fault in found


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def __init__(self): self.reset()\n    def reset(self): self.x = 1",
        "@dataclass\nclass A:\n    x: int = 0\n    def add(self): self.x += 1",
        "class A:\n    __slots__ = ('x',)\n    def late(self): self.x = 1",
        "class B:\n    def __init__(self): self.x = 0\nclass A(B):\n    def late(self): self.x = 1",
        "import errors\nnames = list(vars(errors))",
    ],
)
def test_an_attribute_that_the_constructor_sets_may_change(source: str) -> None:
    assert Sources({"module": source}).faults() == []
