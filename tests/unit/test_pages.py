"""Pages of docs/ that are written from the code: what lies there is what the code says."""

from __future__ import annotations

from pathlib import Path

from codegen import catalogue
from dsl import page

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_of_the_language_is_the_models() -> None:
    assert (DOCS / "dsl.md").read_text() == page.page(), f"run {page.COMMAND} > docs/dsl.md"


def test_the_page_of_errors_is_the_classes() -> None:
    assert (DOCS / "errors.md").read_text() == catalogue.page(), f"run {catalogue.COMMAND} --page > docs/errors.md"
