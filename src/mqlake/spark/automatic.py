# mypy: disable-error-code="misc"
"""Sources that Spark finds by itself: the modules `pyspark_mqlake_…` beside this package have one each.

    first use of a source in a session ─▶ Spark imports each top-level module pyspark_… ─▶ its DefaultSource

So `spark.read.format("commitlog")` works in any session, in SQL, over Spark Connect and in declarative pipelines,
without `register()`. Spark does this for every session of every user, whatever source is asked for: a module imports no
more than PySpark has imported already, and what the source itself needs when it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

from pyspark.sql.datasource import DataSource


def source(module: str, name: str, where: str, attribute: str) -> type[DataSource]:
    """The DefaultSource of the module called `module`: the data source `attribute` of `where`, imported when used."""

    def real(self: DataSource) -> Any:
        return getattr(importlib.import_module(where), attribute)(self.options)

    def method(called: str) -> Any:
        return lambda self, *given, **named: getattr(real(self), called)(*given, **named)

    methods = ("schema", "reader", "writer", "streamReader", "streamWriter")
    members = {"name": classmethod(lambda cls: name), **{each: method(each) for each in methods}}
    return type(
        "DefaultSource", (DataSource,), {**members, "__module__": module, "__doc__": f"The source `{name}`."}
    )
