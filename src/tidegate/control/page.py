"""The control API as a page: plain HTML, made of its OpenAPI description, that needs nothing from outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
section { border-top: 1px solid #8884; padding: .3rem 0; }
h2 { font: 600 1rem ui-monospace, monospace; margin: .6rem 0 .2rem; }
table { border-collapse: collapse; } td { padding: 0 1rem 0 0; vertical-align: top; }
pre { background: #8882; padding: .5rem; overflow-x: auto; }
"""
_EXAMPLE = """
url=$(python3 -c "import json; print(json.load(open('control.json'))['url'])")
token=$(python3 -c "import json; print(json.load(open('control.json'))['token'])")
curl -H "Authorization: Bearer $token" "$url/status"
""".strip()


def page(described: Mapping[str, Any]) -> str:
    """All routes of an API, with the fields of their bodies."""
    info, routes = described["info"], "".join(_routes(described))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>"
        f"<style>{_STYLE}</style><h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "
        "The address and the token are in <code>control.json</code> in the checkpoint; this page as OpenAPI "
        f"is at <a href=openapi.json>/openapi.json</a>.</p><pre>{escape(_EXAMPLE)}</pre>{routes}</html>"
    )


def _routes(described: Mapping[str, Any]) -> Iterator[str]:
    known = described.get("components", {}).get("schemas", {})
    for path, methods in described["paths"].items():
        for method, route in methods.items():
            text = escape(route.get("description", "")).replace("\n", " ")
            title, fields = f"{method.upper()} {escape(path)}", _fields(route, known)
            yield f"<section><h2>{title}</h2><p>{text}</p>{fields}</section>"


def _fields(route: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """The parameters of a route and the fields of its body, a line each."""
    lines = [
        (each["name"], each["schema"], each.get("required", False)) for each in route.get("parameters", ())
    ]
    for content in route.get("requestBody", {}).get("content", {}).values():
        body = _resolved(content["schema"], known)
        required = body.get("required", ())
        lines += [(name, field, name in required) for name, field in body.get("properties", {}).items()]
    rows = (
        f"<tr><td><code>{escape(name)}</code><td>{escape(_kind(field, known))}<td>{'required' * needed}"
        for name, field, needed in lines
    )
    return f"<table>{''.join(rows)}</table>" if lines else ""


def _kind(field: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """What a field takes, in words.

    >>> _kind({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 9}, {"type": "null"}]}, {})
    'integer from 1 to 9, or null'
    """
    field = _resolved(field, known)
    if "anyOf" in field:
        return ", or ".join(_kind(each, known) for each in field["anyOf"])
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    bounds = [
        f"{word} {field[bound]}" for word, bound in (("from", "minimum"), ("to", "maximum")) if bound in field
    ]
    return " ".join([str(field.get("const", field.get("type", "any"))), *bounds])


def _resolved(schema: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema refers to, or itself."""
    found: Mapping[str, Any] = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found
