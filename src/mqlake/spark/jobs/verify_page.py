"""The report of verify as an HTML page: what was found, and what the stores hold."""

from __future__ import annotations

from datetime import UTC, datetime

from mqlake.base.findings import Severity
from mqlake.spark.jobs.page import Page, bars, spans
from mqlake.spark.jobs.verify import StoresReport, TopicFigures
from mqlake.store.check.verify import VerifyReport

TIME_MAX_MS = 253_402_300_799_000


def verify_page(report: StoresReport) -> str:
    page = Page("Verification of " + ", ".join(store.path for store in report.stores))
    page.paragraph(
        "All is well." if report.ok else "Something is damaged; see below for file and byte.",
        bad=not report.ok,
    )
    page.table(
        ["store", "records", "bytes", "log", "queues", "units", "index entries", "damage"],
        [
            [
                store.path,
                store.records,
                store.record_bytes,
                f"{store.min_offset} to {store.end_offset}",
                store.queues,
                store.units,
                store.index_entries,
                store.damage_count,
            ]
            for store in report.stores
        ],
    )
    for store in report.stores:
        _findings(page, store)
    if report.topics:
        _topics(page, report.topics, several=len(report.stores) > 1)
    page.paragraph(f"Made in {report.seconds:.1f} s.")
    return page.text()


def _findings(page: Page, store: VerifyReport) -> None:
    for severity, title in ((Severity.DAMAGE, "Damage"), (Severity.NOTE, "Notes")):
        found = store.of(severity)
        if found:
            page.heading(f"{title}: {store.path}")
            page.table(["what", "file", "byte", ""], [[f.kind, f.path, f.offset, f.text] for f in found])
    hidden = store.damage_count - len(store.of(Severity.DAMAGE))
    if hidden > 0:
        page.paragraph(f"… and {hidden:,} more.", bad=True)
    if store.lost_count:
        page.paragraph(
            f"{store.lost_count:,} messages are lost, as far as the consume queues know.", bad=True
        )


def _topics(page: Page, topics: list[TopicFigures], *, several: bool) -> None:
    names = {id(each): f"{each.path}: {each.topic}" if several else each.topic for each in topics}
    page.heading("Topics")
    page.picture(bars({names[id(each)]: each.bytes / 2**20 for each in topics}, "MiB"), "bytes by topic")
    spanned = {names[id(each)]: (each.first_store_timestamp, each.last_store_timestamp) for each in topics}
    page.picture(spans(spanned, "stored"), "times of the topics")
    page.table(
        ["topic", "queues", "records", "bytes", "first stored", "last stored"],
        [
            [
                names[id(each)],
                each.queues,
                each.records,
                each.bytes,
                _time(each.first_store_timestamp),
                _time(each.last_store_timestamp),
            ]
            for each in topics
        ],
    )


def _time(ms: int) -> str:
    if not 0 < ms <= TIME_MAX_MS:
        return f"{ms} ms"
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
