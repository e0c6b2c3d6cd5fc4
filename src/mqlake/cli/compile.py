"""`mqlake compile`: compiled code ahead of its use, so that no broker has to compile beside its work."""

from __future__ import annotations

import time

import click

from mqlake.cli.output import print_json, progress


@click.command("compile")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def compile_(as_json: bool) -> None:
    """Compile ahead what brokers run as machine code.

    Without this command the first broker compiles beside its work, and is slower until it is done. The machine code is
    good for this version of mqlake and this kind of processor; what is there already is not compiled again. It is
    kept in $NUMBA_CACHE_DIR, beside the sources, or in ~/.cache/numba: the first of them that this user may write.
    """
    from mqlake.broker.ahead import compile_ahead
    from mqlake.metaq.formats.scan import compile_scan

    began = time.monotonic()
    with progress("compiling", in_bytes=False) as report:
        done = compile_ahead(report, [compile_scan])
    seconds = time.monotonic() - began
    if as_json:
        print_json({"directory": done.directory, "functions": done.functions, "seconds": round(seconds, 1)})
    elif done.functions:
        click.echo(
            f"compiled {done.functions} functions in {seconds:.0f} s; they are kept in {done.directory}"
        )
    else:
        click.echo(f"everything is compiled already; new machine code would be kept in {done.directory}")
