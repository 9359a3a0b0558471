# SPDX-License-Identifier: GPL-2.0-only
"""JSON schemas, each checked once and not for every document: that takes ten times as long."""

from __future__ import annotations

from typing import Any

from jsonschema import Draft202012Validator


def validator(schema: dict[str, Any]) -> Draft202012Validator:
    """Return what validates documents against a schema. Raises SchemaError for a wrong schema."""
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)
