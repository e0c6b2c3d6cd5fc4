from __future__ import annotations

from mqlake.base.findings import KEPT_OF_A_KIND, Finding, Findings, Severity


def test_a_finding_names_file_and_byte() -> None:
    finding = Finding(Severity.DAMAGE, "body CRC", "/store/commitlog/0", 4096, "7, the record says 8")
    assert str(finding) == "/store/commitlog/0: byte 4096: body CRC: 7, the record says 8"


def test_of_each_kind_the_first_are_kept_and_all_are_counted() -> None:
    findings = Findings()
    for number in range(KEPT_OF_A_KIND + 20):
        findings.damage("hole", "a", number, "")
    findings.damage("torn", "a", 1, "")
    findings.note("hole", "a", 2, "")  # a note of the same name is another kind
    assert [finding.offset for finding in findings.kept] == [*range(KEPT_OF_A_KIND), 1, 2]
    assert findings.damage_count == KEPT_OF_A_KIND + 21
    assert findings.counts[Severity.NOTE, "hole"] == 1


def test_one_may_stand_for_many() -> None:
    findings = Findings()
    many = Finding(Severity.DAMAGE, "unit", "q", 0, "500 units")
    findings.add(many, 500)
    findings.add(many)
    assert findings.kept == [many]
    assert findings.damage_count == 501


def test_notes_are_no_damage() -> None:
    findings = Findings()
    findings.note("torn tail", "a", 9, "cut off at the next start")
    assert findings.damage_count == 0
    assert findings.of(Severity.DAMAGE) == []
    assert [finding.kind for finding in findings.of(Severity.NOTE)] == ["torn tail"]
