# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""Usual pulls: from their frames to answers that leave straight from the mapped log.

    frame ─match─▶ plan, three numbers ─has_ahead, is_usual─▶ units, file ─answer─▶ head │ run │ run │ head │ … ─▶ sendmsg
              └─▶ none: Python's              └─▶ not as Python has said last: `left`, which may say it again

A plan (see fast_pull) is a header without its three numbers. Nothing is copied but heads and short runs: sendmsg gets
the stretches of the mapped log in which the records lie. What the socket does not take is `rest`.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT32_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from mqlake.native.prim cimport *
from mqlake.native.reader cimport *
from mqlake.native.requests cimport LITE_PULL_MESSAGE, PULL_MESSAGE
from mqlake.native.system cimport *
from mqlake.native.text cimport read_digits, write_number
from mqlake.native.units cimport follow, put_runs

cdef enum:
    MESSAGES = 64
    TAGS = 16
    TEXT_SIZE = 2048
    DIGITS_MAX = 18
    PULLS_MAX = 16  # answered by one sendmsg
    LOOK_MAX = 16  # plans that are compared with a header
    UNIT_SIZE = 20
    HEAD_SIZE_MAX = TEXT_SIZE + 8 + 4 * 20
    IOV_MAX = 1024  # stretches of memory that one sendmsg takes
    STEP_BYTES_MAX = 512 * 1024  # of answers; then no other is begun
    # Room for the records of a step that lie in many short runs (shorter than RUN_SIZE_MIN on average), and are copied
    # together: the system takes longer for each stretch of memory than for its bytes.
    GATHERED_SIZE = 512 * 1024
    RUN_SIZE_MIN = 2048

MESSAGES_MAX = MESSAGES
"""Messages of a pull; who asks for more is answered by Python."""
TAGS_MAX = TAGS
"""Tags of a filter; one with more is Python's."""
TEXT_MAX = TEXT_SIZE
"""Bytes of a plan's text."""

cdef i64 CODES[2]
CODES[:] = [PULL_MESSAGE, LITE_PULL_MESSAGE]

cdef struct Pull:
    i64 opaque, queue_offset, commit_offset
    i64 end  # of its frame
    i64 low, high  # the limits of its queue
    i64 units  # of the queue, that it may look at, from its offset on
    bint is_whole  # these are all
    # what was found
    i64 messages, size, next_offset, last_offset, last_size

cdef struct Step:
    # what one sendmsg needs
    Pull pulls[PULLS_MAX]
    i64 runs[2 * MESSAGES]
    iovec iov[IOV_MAX]
    i64 chosen_offsets[MESSAGES]
    u8 chosen[MESSAGES * UNIT_SIZE]
    u8 heads[PULLS_MAX * HEAD_SIZE_MAX]
    u8 gathered[GATHERED_SIZE]


cdef class NativePlan:
    """What compiled code knows of the pulls with one header: its text, what the broker has said of it (`known`), and
    units of its queue ahead, which `read_ahead` sets. What is counted here is counted late."""

    # the four pieces of a header around its three numbers, the five pieces of the answer's around nextBeginOffset,
    # minOffset, maxOffset and opaque, and the topic, one after the other
    cdef bytes text
    cdef i64 header[4]
    cdef i64 answer[5]
    cdef i64 header_size, topic_at, topic_length
    cdef int opaque_is, queue_offset_is, commit_offset_is
    cdef i64 queue_id, bytes_max, count_max, span, tag_count
    cdef i64 tags[TAGS]
    cdef readonly object plan
    cdef bint is_known
    cdef object group, topic
    cdef tuple known
    cdef i64 topics_counter, groups_counter
    # ahead
    cdef object queue, files, file
    cdef bytes units
    cdef i64 first, units_end, file_base, file_size, floor, usual_until
    cdef Bytes file_at
    # not counted yet
    cdef i64 pulls, messages, size, latency_ms, last_offset, last_size

    def __init__(self, plan, pieces, order, answer, i64 bytes_max, i64 count_max, i64 span, codes):
        """`plan`: a PullPlan; `pieces`: of a header around its numbers, and `order`: which of these is opaque,
        queueOffset, commitOffset; `answer`: the pieces of the answer's; `bytes_max`, `count_max`: of an answer;
        `span`: units that a pull looks at, at most; `codes`: the tags codes of its filter, none without one."""
        header = plan.header
        topic = header.topic.encode()
        self.text = b"".join((*pieces, *answer, topic))
        if len(pieces) != 4 or len(answer) != 5 or len(self.text) > TEXT_MAX or len(codes) > TAGS_MAX:
            raise ValueError("this is no plan")
        for n in range(4):
            self.header[n] = len(pieces[n])
            self.header_size += self.header[n]
        self.topic_at, self.topic_length = self.header_size, len(topic)
        for n in range(5):
            self.answer[n] = len(answer[n])
            self.topic_at += self.answer[n]
        self.opaque_is, self.queue_offset_is, self.commit_offset_is = order
        if sorted(order) != [0, 1, 2] or not 0 < count_max <= MESSAGES_MAX or span < 1:
            raise ValueError("this is no plan")
        self.is_known = True
        self.plan, self.group, self.topic, self.queue_id = plan, header.consumer_group, header.topic, header.queue_id
        self.known = plan.known
        self.topics_counter, self.groups_counter = plan.versions
        self.bytes_max, self.count_max, self.span = bytes_max, count_max, span
        self.tag_count = len(codes)
        for n in range(len(codes)):
            self.tags[n] = codes[n]

    def read_ahead(self, queue, bytes units, i64 first, file, i64 address, i64 floor, i64 usual_until):
        """Sets `units` of `queue`, of the messages from `first` on. The first one leads into `file`, whose bytes lie at
        `address`; `floor`: the physical offset from which on they may be sent without a look at the disk;
        `usual_until`: when the broker has to be asked again, by the monotonic clock in ns."""
        self.queue, self.files, self.units, self.file = queue, queue.files.files, units, file
        self.first, self.units_end = first, first + len(units) // UNIT_SIZE
        self.file_at, self.file_base, self.file_size = <Bytes><size_t>address, file.file_from_offset, file.file_size
        self.floor, self.usual_until = floor, usual_until

    def forget(self):
        """Makes it a plan that matches nothing: others may have it still."""
        self.is_known = False
        self.queue = self.files = self.file = self.units = None

    def take_counts(self):
        """(messages, bytes, ms, physical offset and size of the last message, pulls) since the last call."""
        counts = self.messages, self.size, self.latency_ms, (self.last_offset, self.last_size), self.pulls
        self.pulls = self.messages = self.size = self.latency_ms = 0
        return counts

    cdef bint match(self, Bytes data, i64 position, i64 end, Pull *pull) noexcept:
        """True if data[position:end] is this plan's header; its numbers are in the pull then."""
        cdef Bytes text = self.text
        cdef i64 at = 0, length
        cdef i64 numbers[3]
        for piece in range(4):
            length = self.header[piece]
            if length > end - position or not same_bytes(data, position, text, at, length):
                return False
            position += length
            at += length
            if piece < 3:
                position = read_number(data, position, end, &numbers[piece])
                if position < 0:
                    return False
        pull.opaque, pull.queue_offset = numbers[self.opaque_is], numbers[self.queue_offset_is]
        pull.commit_offset = numbers[self.commit_offset_is]
        return position == end and pull.opaque <= INT32_MAX

    cdef bint has_ahead(self, Pull *pull, i64 now) except -1:
        """True if the units that the pull looks at are here, and lead into the file; they are in the pull then."""
        if self.queue is None or now >= self.usual_until:
            return False
        files = self.queue.files
        # whatever cuts, deletes or begins the queue again makes another list of files; all else only appends
        if files.files is not self.files:
            return False
        offset = pull.queue_offset
        pull.low, pull.high = <i64>self.queue.min_logic_offset // UNIT_SIZE, <i64>files.max_offset // UNIT_SIZE
        end = min(offset + self.span, pull.high)
        if not pull.low <= offset < end or not self.first <= offset < self.units_end:
            return False
        pull.is_whole = end <= self.units_end
        if not pull.is_whole and offset != self.first:
            return False
        pull.units = min(end, self.units_end) - offset
        physical_offset = load64(self.units, (offset - self.first) * UNIT_SIZE)
        return self.file_base <= physical_offset < self.file_base + self.file_size and physical_offset >= self.floor

    cdef i64 choose(self, Pull *pull, Step *step) noexcept:
        """Copies the units that the filter lets through, with their queue offsets, as many as an answer has; how many.
        0 as well when there may be more of them than those that are here."""
        cdef Bytes units = self.units
        cdef i64 count = 0, looked_at = 0, at, code
        while looked_at < pull.units and count < self.count_max:
            at = (pull.queue_offset - self.first + looked_at) * UNIT_SIZE
            code = load64(units, at + 12)
            for tag in range(self.tag_count):
                if self.tags[tag] == code:
                    copy(<Room>step.chosen, count * UNIT_SIZE, units, at, UNIT_SIZE)
                    step.chosen_offsets[count] = pull.queue_offset + looked_at
                    count += 1
                    break
            looked_at += 1
        pull.next_offset = pull.queue_offset + looked_at
        return 0 if count < self.count_max and not pull.is_whole else count

    cdef i64 put_head(self, Room out, Pull *pull) noexcept:
        """Writes what comes before the records of an answer; its size."""
        cdef Bytes text = self.text
        cdef i64 at = self.header_size, end = 8
        for piece in range(5):
            end = put(out, end, text, at, self.answer[piece])
            at += self.answer[piece]
            if piece == 0:
                end = write_number(out, end, pull.next_offset)
            elif piece == 1:
                end = write_number(out, end, pull.low)
            elif piece == 2:
                end = write_number(out, end, pull.high)
            elif piece == 3:
                end = write_number(out, end, pull.opaque)
        store32(out, 0, end - 4 + pull.size)
        store32(out, 4, end - 8)
        return end


cdef inline i64 read_number(Bytes data, i64 position, i64 end, i64 *value) noexcept nogil:
    """Where decimal digits without leading zeros end; -1 when there is no such number."""
    stop = read_digits(data, position, end, value)
    length = stop - position
    if length < 1 or length > DIGITS_MAX or (length > 1 and data[position] == 48):
        return -1
    return stop


cdef class PullTaker(Taker)


cdef class NativePulls:
    """Answers pulls of a FastPull's plans."""
    cdef Step *step
    cdef object broker, fast, topics, groups, consumers, offsets, hooks, queues
    cdef list uncounted
    cdef i64 timed[2]
    cdef i64 elapsed_ns[2]
    cdef readonly NativePlan left  # of the pull that is next, if that could not be answered
    cdef readonly bytes rest  # of the last answers: what the socket did not take

    def __cinit__(self):
        self.step = <Step *>calloc(1, sizeof(Step))  # its pages take no memory before they are used
        if self.step == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.step)

    def __init__(self, fast):
        """`fast`: a FastPull."""
        self.fast, self.broker, self.uncounted = fast, fast.broker, []
        broker = self.broker
        self.topics, self.groups = broker.topic_config_manager, broker.subscription_group_manager
        self.consumers, self.offsets = broker.consumer_manager, broker.consumer_offset_manager
        self.hooks, self.queues = broker.hooks, broker.store.consume_queues

    def taker(self):
        """A PullTaker, for one connection."""
        return PullTaker(self)

    @property
    def asked(self):
        """(opaque, queueOffset, commitOffset, where its frame ends) of the pull that is `left`."""
        pull = &self.step.pulls[0]
        return pull.opaque, pull.queue_offset, pull.commit_offset, pull.end

    def take_uncounted(self):
        """The plans of which pulls were answered since the last call, each with its take_counts()."""
        plans, self.uncounted = self.uncounted, []
        return [(plan.plan, (<NativePlan>plan).take_counts()) for plan in plans]

    def take_times(self):
        """[(code, how many, ns of all)] of the pulls of less than a millisecond that were answered since the last
        call."""
        times = [(CODES[kind], self.timed[kind], self.elapsed_ns[kind]) for kind in range(2) if self.timed[kind]]
        for kind in range(2):
            self.timed[kind] = self.elapsed_ns[kind] = 0
        return times

    cdef bint is_usual(self, NativePlan plan) except -1:
        """True if the broker would say of the plan what it has said last (as FastPull asks it)."""
        broker, known = self.broker, plan.known
        topics, groups = self.topics.data_version, self.groups.data_version
        if (
            broker.config is not known[0]
            or broker.store_config is not known[1]
            or topics is not known[2]
            or topics.counter != plan.topics_counter
            or groups is not known[3]
            or groups.counter != plan.groups_counter
            or self.hooks.consume
            or self.queues.get(plan.topic, plan.queue_id) is not plan.queue
            or self.offsets.has_offset_reset(plan.topic, plan.group, plan.queue_id)
        ):
            return False
        group = (<dict>self.consumers.consumer_table).get(plan.group)
        return group is known[4] and (
            group is None
            or (group.message_model is known[5] and (<dict>group.subscription_table).get(plan.topic) is known[6])
        )

    cdef i64 take_from(
        self, PullTaker taker, connection, Bytes data, i64 start, i64 stop, int fd, i64 began
    ) except -1:
        """Answers the pulls that begin data[start:stop], which was read at `began`, to the socket `fd`, with -1 to
        `rest`; where the next frame begins."""
        cdef Step *step = self.step
        cdef i64 count = 0, parts = 0, gathered = 0, size = 0, sent = 0, elapsed
        cdef Pull *pull
        cdef NativePlan plan
        cdef msghdr message
        self.left, self.rest = None, None
        plans, arrays = [], []  # arrays keep their files mapped
        while count < PULLS_MAX and size < STEP_BYTES_MAX:
            pull = &step.pulls[count]
            plan = taker.match(data, start, stop, pull)
            if plan is None:
                break
            array = None
            if plan.has_ahead(pull, began) and self.is_usual(plan):
                array = plan.file.readable_array  # empty once it is closed
            if array is None or len(array) == 0 or not self.answer(plan, pull, &parts, &gathered, &size, count):
                if count == 0:
                    self.left = plan
                break
            arrays.append(array)
            plans.append(plan)
            start = pull.end
            count += 1
        if count == 0:
            return start
        if fd >= 0:
            memset(&message, 0, sizeof(message))
            message.msg_iov, message.msg_iovlen = step.iov, parts
            with nogil:
                sent = max(<i64>0, <i64>sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL))
        if sent < size:
            self.rest = left_of(step.iov, parts, size, sent)
        elapsed = monotonic_ns() - began
        for n in range(count):
            self.answered(connection, <NativePlan>plans[n], &step.pulls[n], elapsed)
        return start

    cdef bint answer(
        self, NativePlan plan, Pull *pull, i64 *parts, i64 *gathered, i64 *size, i64 number
    ) except -1:
        """True if the pull leads to its own whole records, and its answer is one of the step's now: the `number`-th."""
        cdef Step *step = self.step
        cdef Bytes units = plan.units
        cdef i64 units_at = (pull.queue_offset - plan.first) * UNIT_SIZE, unit_count = pull.units
        cdef i64 *queue_offsets = NULL
        cdef i64 found, run_count, head_size
        cdef Room head
        if plan.tag_count > 0:
            unit_count = plan.choose(pull, step)
            units, units_at, queue_offsets = step.chosen, 0, step.chosen_offsets
        if unit_count > MESSAGES or parts[0] + 1 + unit_count > IOV_MAX:
            return False
        found, pull.size, run_count = follow(
            plan.file_at, plan.file.read_position, plan.file_base, units, units_at, unit_count, plan.text,
            plan.topic_at, plan.topic_length, plan.queue_id, pull.queue_offset, queue_offsets, plan.bytes_max, False,
            step.runs,
        )
        if found <= 0:
            return False
        pull.messages = found
        if plan.tag_count == 0:
            pull.next_offset = pull.queue_offset + found
        elif found < unit_count:
            pull.next_offset = queue_offsets[found]
        pull.last_offset = load64(units, units_at + (found - 1) * UNIT_SIZE)
        pull.last_size = load32(units, units_at + (found - 1) * UNIT_SIZE + 8)
        head = <Room>step.heads + number * HEAD_SIZE_MAX
        head_size = plan.put_head(head, pull)
        add_part(step, parts, head, head_size)
        size[0] += head_size + pull.size
        if pull.size < run_count * RUN_SIZE_MIN and pull.size <= GATHERED_SIZE - gathered[0]:
            put_runs(<Room>step.gathered, gathered[0], plan.file_at, step.runs, run_count)
            add_part(step, parts, <Bytes>step.gathered + gathered[0], pull.size)
            gathered[0] += pull.size
        else:
            for run in range(run_count):
                add_part(step, parts, plan.file_at + step.runs[2 * run], step.runs[2 * run + 1] - step.runs[2 * run])
        return True

    cdef int answered(self, connection, NativePlan plan, Pull *pull, i64 elapsed) except -1:
        """Commits what a pull says that has been answered, and counts it."""
        self.fast.commit(connection, plan.plan.header, pull.next_offset, pull.commit_offset)
        if plan.pulls == 0:
            if not self.uncounted:
                self.fast.count_soon()
            self.uncounted.append(plan)
        plan.pulls += 1
        plan.messages += pull.messages
        plan.size += pull.size
        plan.last_offset, plan.last_size = pull.last_offset, pull.last_size
        if elapsed < 1_000_000:
            kind = 0 if plan.plan.code == CODES[0] else 1
            self.timed[kind] += 1
            self.elapsed_ns[kind] += elapsed
        else:
            plan.latency_ms += elapsed // 1_000_000
            self.fast.took(plan.plan, elapsed)
        return 0


cdef inline void add_part(Step *step, i64 *parts, Bytes at, i64 size) noexcept:
    step.iov[parts[0]].iov_base, step.iov[parts[0]].iov_len = <void *>at, size
    parts[0] += 1


cdef bytes left_of(iovec *iov, i64 parts, i64 size, i64 sent):
    """The bytes of the parts, `size` in all, after the first `sent`."""
    cdef bytes left = PyBytes_FromStringAndSize(NULL, size - sent)
    cdef Room out = <Room>PyBytes_AS_STRING(left)
    cdef i64 at = 0, length, skipped
    for part in range(parts):
        length = iov[part].iov_len
        skipped = min(sent, length)
        sent -= skipped
        copy(out, at, <Bytes>iov[part].iov_base, skipped, length - skipped)
        at += length - skipped
    return left


cdef class PullTaker(Taker):
    """Answers the pulls of one connection, by the plans that it has asked for before."""
    cdef NativePulls pulls
    cdef readonly list plans
    cdef i64 last  # the plan that was found last: the one after it is tried first, as queues are pulled in turn

    def __init__(self, NativePulls pulls):
        self.pulls, self.plans = pulls, []

    def add(self, NativePlan plan):
        """Adds what a pull of this connection has asked for, and drops what nobody knows any more."""
        self.plans = [each for each in self.plans if (<NativePlan>each).is_known and each is not plan]
        self.last = len(self.plans)
        self.plans.append(plan)

    def answer(self, connection, data, i64 start):
        """Answers the pulls that begin data[start:]; where the next frame begins. Of `pulls.left` nothing is done."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= view.len:
                raise ValueError(f"{start} of {view.len} bytes")
            return self.take(connection, <Bytes>view.buf, start, view.len, monotonic_ns())
        finally:
            PyBuffer_Release(&view)

    cdef i64 take(self, connection, Bytes data, i64 start, i64 size, i64 began) except -1:
        pulls = self.pulls
        following = pulls.take_from(self, connection, data, start, size, connection.descriptor(), began)
        if pulls.rest is not None:
            connection.send_encoded(pulls.rest)
        return following

    cdef NativePlan match(self, Bytes data, i64 start, i64 stop, Pull *pull):
        """The plan of the pull that begins data[start:stop]; None if it is none of these."""
        cdef i64 count = len(self.plans), size, number, looks = min(count, <i64>LOOK_MAX)
        cdef NativePlan plan
        if stop - start < 8:
            return None
        size = load32(data, start)
        # a header in JSON, and no body
        if size < 4 or size > stop - start - 4 or load32(data, start + 4) != size - 4:
            return None
        pull.end = start + 4 + size
        for look in range(1, looks + 1):
            number = (self.last + (look if look < looks else 0)) % count
            plan = <NativePlan>self.plans[number]
            if plan.is_known and plan.match(data, start + 8, pull.end, pull):
                self.last = number
                return plan
        return None
