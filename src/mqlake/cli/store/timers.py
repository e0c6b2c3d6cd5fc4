"""`mqlake store timers`: the timer messages of a store that wait, also while a broker runs."""

from __future__ import annotations

import itertools

import click

from mqlake.cli.options import Whole, directory_argument, json_option, set_option, time_ms
from mqlake.cli.output import as_object, note, print_json_line, time_text
from mqlake.store.read_only import ReadOnlyStore
from mqlake.store.timer.timer_view import PendingTimer, TimerView


@click.command()
@directory_argument
@click.option("-t", "--topic", metavar="TOPIC", help="Only messages for this topic.")
@click.option(
    "--from", "start_ms", type=time_ms, default="0", metavar="TIME", help="Due at or after this time."
)
@click.option("--to", "end_ms", type=time_ms, metavar="TIME", help="Due before this time.")
@click.option("--max", "count_max", type=Whole(1), metavar="N", help="Only the first N.")
@click.option("--count", "only_count", is_flag=True, help="Only count them, by topic.")
@set_option
@json_option
def timers(
    directory: str,
    topic: str | None,
    start_ms: int,
    end_ms: int | None,
    count_max: int | None,
    only_count: bool,
    settings: dict[str, str],
    as_json: bool,
) -> None:
    """List the timer messages that wait, in the order in which they are due.

    Each line has the time from which it is delivered, topic, queue and id; and `recalled` if a recall is stored for it.
    Works while a broker runs, and modifies nothing.
    """
    with ReadOnlyStore(directory, settings) as store, TimerView(store) as view:
        found = itertools.islice(view.pending(topic=topic, start_ms=start_ms, end_ms=end_ms), count_max)
        if only_count:
            _print_counts(found, as_json)
            return
        nothing = True
        for timer in found:
            nothing = False
            if as_json:
                print_json_line(as_object(timer))
            else:
                click.echo(_line(timer))
        if nothing and not as_json:
            note("no timer message waits")


def _line(timer: PendingTimer) -> str:
    state = "  recalled" if timer.is_recalled else ""
    return f"{time_text(timer.due)}  {timer.topic}/{timer.queue_id}  {timer.uniq_key}{state}"


def _print_counts(found: itertools.islice[PendingTimer], as_json: bool) -> None:
    counts: dict[str, int] = {}
    for timer in found:
        counts[timer.topic] = counts.get(timer.topic, 0) + 1
    for topic, count in sorted(counts.items()):
        if as_json:
            print_json_line({"topic": topic, "waiting": count})
        else:
            click.echo(f"{topic}  {count:,}")
