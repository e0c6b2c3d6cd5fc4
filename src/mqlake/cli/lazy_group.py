"""LazyGroup: a click group that imports a command when it is used.

`mqlake --help` and shell completion take names and help from a table; only the command that runs is imported, so a
start costs no more than click does.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click
from click.shell_completion import CompletionItem

from mqlake.cli.interrupts import ends_at_once


class LazyGroup(click.Group):
    """`lazy` is name → ("module:attribute", one line of help)."""

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.lazy, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, attribute = self.lazy[cmd_name][0].split(":")
        with ends_at_once():
            command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            if name in self.lazy:
                rows.append((name, self.lazy[name][1]))
            elif (command := super().get_command(ctx, name)) is not None:
                rows.append((name, command.get_short_help_str(limit=100)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        eager = [name for name in self.commands if name.startswith(incomplete)]
        return [
            *(
                CompletionItem(name, help=text)
                for name, (_, text) in self.lazy.items()
                if name.startswith(incomplete)
            ),
            *(CompletionItem(name, help=self.commands[name].get_short_help_str()) for name in eager),
        ]

    def names_to_suggest(self, ctx: click.Context) -> list[str]:
        return self.list_commands(ctx)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib

            near = difflib.get_close_matches(args[0], self.names_to_suggest(ctx), n=1)
            if not near or "mean" in error.message:
                raise
            raise click.UsageError(f"{error.message} Did you mean {near[0]!r}?", ctx) from None
