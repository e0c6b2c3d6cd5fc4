"""The two arrays that fast_pull shares with its kernels, one of numbers (int64) and one of bytes.

numbers  │ a row for each plan │ a row for each pull of this step │ RUNS │ what sendmsg gets │
octets   │ TEXT of each plan: header, answer's header, topic │ UNITS of each plan │ HEADS of this step's answers │
"""

from __future__ import annotations

(
    TEXT_AT,
    HEADER_0,
    HEADER_1,
    HEADER_2,
    HEADER_3,
    OPAQUE_IS,
    QUEUE_OFFSET_IS,
    COMMIT_OFFSET_IS,
    ANSWER_0,
    ANSWER_1,
    ANSWER_2,
    ANSWER_3,
    ANSWER_4,
    TOPIC_LENGTH,
    QUEUE_ID,
    BYTES_MAX,
    COUNT_MAX,
    SPAN,
    TAGS,
) = range(19)
"""Fields of a plan: where its text begins; the lengths of the four pieces of a header around its three numbers, and
which of these is what; the lengths of the five pieces of the answer's header around nextBeginOffset, minOffset,
maxOffset and opaque; what its records say of themselves; how many bytes of them an answer has, beside the first, and
how many of them at most; how many units it looks at for those, and how many tags its filter has (0: no filter; see
TAGS_AT)."""
PLAN_SIZE = 19
PLANS_MAX = 256
"""Plans that compiled code knows at once; with one more, all are forgotten and learnt again."""
TEXT_SIZE = 2048
"""Bytes of a plan's text at most."""
LOOK_MAX = 16
"""Plans that are compared with a header, from the one after the last that was found: a consumer pulls its queues in
turn."""

(
    PLAN,
    OPAQUE,
    QUEUE_OFFSET,
    COMMIT_OFFSET,
    END,
    FILE,
    FILE_END,
    FILE_BASE,
    UNITS_START,
    UNITS,
    MIN_OFFSET,
    MAX_OFFSET,
    FOUND,
    SIZE,
    LAST_OFFSET,
    LAST_SIZE,
    NEXT,
    IS_WHOLE,
) = range(18)
"""Fields of a pull: its plan, its numbers, where its frame ends; where its mapped file lies in memory, how far it
may be read, and its first offset in the log; where its units are, how many, and the limits of its queue. Then what
was found: how many messages, their bytes, where the last one is, and which queue offset is next. IS_WHOLE: the units
are all that it may look at."""
PULL_SIZE = 18
PULLS_MAX = 16
"""Pulls that are answered in one step."""
MESSAGES_MAX = 64
"""Messages of a pull; who asks for more is answered by Python."""
TAGS_MAX = 16
"""Tags of a filter; one with more is Python's."""
UNIT_SIZE = 20
UNITS_AHEAD = 8192
"""Units of its queue that are kept of each plan, for who reads on."""
HEAD_SIZE_MAX = TEXT_SIZE + 8 + 4 * 20
IOV_MAX = 1024
"""Stretches of memory that one sendmsg takes."""
STEP_BYTES_MAX = 512 * 1024
"""Bytes of the answers of a step, after which no other is begun."""

PULLS_AT = PLANS_MAX * PLAN_SIZE
RUNS_AT = PULLS_AT + PULLS_MAX * PULL_SIZE
IOV_AT = RUNS_AT + 2 * MESSAGES_MAX
MESSAGE_AT = IOV_AT + 2 * IOV_MAX
"""A struct msghdr."""
IOV_COUNT = MESSAGE_AT + 3
"""How many stretches of memory the last answers were."""
TAGS_AT = MESSAGE_AT + 8
"""The tags codes of each plan's filter."""
CHOSEN_OFFSETS_AT = TAGS_AT + PLANS_MAX * TAGS_MAX
"""Queue offsets of the units that the filter of a pull lets through; these are at CHOSEN_AT."""
NUMBERS_SIZE = CHOSEN_OFFSETS_AT + MESSAGES_MAX

UNITS_AT = PLANS_MAX * TEXT_SIZE
HEADS_AT = UNITS_AT + PLANS_MAX * UNITS_AHEAD * UNIT_SIZE
CHOSEN_AT = HEADS_AT + PULLS_MAX * HEAD_SIZE_MAX
GATHERED_AT = CHOSEN_AT + MESSAGES_MAX * UNIT_SIZE
GATHERED_SIZE = 512 * 1024
"""Room for the records of a step that lie in many short runs (shorter than RUN_SIZE_MIN on average), and are copied
together: the system takes longer for each stretch of memory than for its bytes."""
RUN_SIZE_MIN = 2048
OCTETS_SIZE = GATHERED_AT + GATHERED_SIZE
