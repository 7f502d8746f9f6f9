"""Docstrings as the library writes them, for the pages on its API: a Griffe extension."""

from __future__ import annotations

import re
from typing import Any

import griffe

_BLOCK = re.compile(r"^( *)\.\. math::[ \n]+(.+?)(?=\n\s*\n|\Z)", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r":math:`([^`]+)`", re.DOTALL)
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)
_LITERAL = re.compile(r"^( *)::\n\n((?: *\n|\1 {4}.*\n?)+)", re.MULTILINE)
_ARGUMENTS = re.compile(r"^Args:\n(?: +.*(?:\n|\Z))+", re.MULTILINE)
_SEVERAL = re.compile(r"^( +)(\w+(?:, \w+)+): (.+)$", re.MULTILINE)
_COMMENT = re.compile(r"#:? (.+)$")


class Docstrings(griffe.Extension):
    """Equations, examples and code in Markdown; what a comment says beside a field."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
        elif obj.is_attribute and obj.parent.is_class and (said := _beside(obj)):
            obj.docstring = griffe.Docstring(said, parent=obj)


def markdown(text: str) -> str:
    """A docstring's reStructuredText, as far as the library uses it."""
    text = _ARGUMENTS.sub(lambda found: _SEVERAL.sub(_one_by_one, found[0]), text)
    text = _BLOCK.sub(lambda found: f"{found[1]}\\[{_joined(found[2])}\\]", text)
    text = _INLINE.sub(lambda found: f"\\({_joined(found[1])}\\)", text)
    text = _ROLE.sub(r"`\1`", text)
    text = _LITERAL.sub(lambda found: f"{found[1]}```python\n{_dedented(found[2])}```\n", text)
    return _EXAMPLE.sub(lambda found: f"```pycon\n{_dedented(found[0])}\n```", text)


def _one_by_one(found: re.Match[str]) -> str:
    """A line for each of several arguments that share one."""
    return "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", "))


def _joined(tex: str) -> str:
    return " ".join(tex.split())


def _dedented(code: str) -> str:
    first = re.search(r"^ *(?=\S)", code, re.MULTILINE)
    return re.sub(rf"^ {{{len(first[0]) if first else 0}}}", "", code, flags=re.MULTILINE)


def _beside(field: griffe.Object) -> str:
    """A comment on the line of a field."""
    if field.lineno is None or field.lineno != field.endlineno:
        return ""
    line = field.lines_collection[field.filepath][field.lineno - 1]
    found = _COMMENT.search(line)
    return "" if found is None or "noqa" in line or "type: ignore" in line else found[1]
