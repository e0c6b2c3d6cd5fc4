"""Names that the cluster knows, for shells. What asks for them is imported when somebody presses Tab."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topics; none if the cluster does not answer quickly."""
    from mqlake.cli.admin import shared

    return shared.complete_topic(ctx, param, incomplete)


def complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Consumer groups, likewise."""
    from mqlake.cli.admin import shared

    return shared.complete_group(ctx, param, incomplete)
