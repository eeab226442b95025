"""Merge rules for rows in memory: Spark's SQL over `old` and `new`, evaluated by DuckDB.

Owns which SQL these rules may use, and that what they may use gives what Spark gives with its default
settings (ANSI): where DuckDB differs, the rule is translated so that it does not, or is refused by name. Does
not own which rows are merged (`keyed.changed_rows`), or rules that Spark itself evaluates (`spark.merge`).

    parser      text to a tree
    types       Spark's names of types, and the type in which values of several meet
    translate   a tree with types, as DuckDB's SQL
    evaluate    DuckDB, only where there is a rule
"""

from __future__ import annotations

from dstl_dagster.state.rules.evaluate import Rule, evaluated_rules, require_rules
from dstl_dagster.state.rules.translate import columns_of_new, refuse_unfinished
from dstl_dagster.state.rules.types import declared_columns

__all__ = [
    "Rule",
    "columns_of_new",
    "declared_columns",
    "evaluated_rules",
    "refuse_unfinished",
    "require_rules",
]
