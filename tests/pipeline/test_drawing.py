"""A pipeline can be looked at."""

from __future__ import annotations

from xml.etree import ElementTree

import tidegate as tg


def pipeline() -> tg.Pipeline:
    p = tg.Pipeline("shapes")
    a = p.source(tg.sources.Sensors(sensors=10, rate=10))
    b = p.source(tg.sources.Sensors(sensors=20, rate=20))
    hot, cold = a.union(b).branch("value > 30 and id < 5")
    hot.sink(tg.sinks.Files("out/hot"))
    cold.select("id", lambda df: df.value + 1).sink(tg.sinks.Discard())
    return p


def test_the_tree_has_every_step_once_with_its_line() -> None:
    text = str(pipeline())
    for step in pipeline().steps:
        assert sum(row.strip("│├└─ ").startswith(f"{step.name} ") for row in text.splitlines()) == 1, (
            step.name
        )
    assert "union-1 + source-2" in text
    assert "→ union-1" in text
    assert "test_drawing.py:" in text


def test_a_function_is_shown_as_one() -> None:
    assert "id, λ" in str(pipeline())


def test_the_picture_is_well_formed_and_escaped() -> None:
    root = ElementTree.fromstring(pipeline()._repr_html_())
    texts = ["".join(node.itertext()) for node in root.iter() if node.tag.endswith("text")]
    assert any("value > 30 and id < 5" in text for text in texts)
    boxes = [node for node in root.iter() if node.tag.endswith("rect")]
    assert len(boxes) == len(pipeline().steps)
    places = {(box.get("x"), box.get("y")) for box in boxes}
    assert len(places) == len(boxes)
