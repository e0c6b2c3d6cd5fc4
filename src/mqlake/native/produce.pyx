# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""The sends of one read of a connection: from its bytes to the log and to their answers, in one call.

    frames ─ read_sends ─▶ columns ─▶ what Python knows: file, queues' offsets, topics ─ write_sends ─▶ log, answers
                              └─▶ left to FastSend: half messages, commits, a file that is full, a lock that is held

As in `single`, the interpreter lock is held from the first line to the last, so no other thread of Python sees anything
half done.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject

from mqlake.native.append cimport publish
from mqlake.native.frame_layout cimport JSON, ROCKETMQ
from mqlake.native.prim cimport *
from mqlake.native.reader cimport *
from mqlake.native.requests cimport *
from mqlake.native.send_layout cimport *
from mqlake.native.sends cimport *
from mqlake.native.single cimport *
from mqlake.native.system cimport monotonic_ns
from mqlake.native.text cimport equals

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(PyObject *items, Py_ssize_t at)
    PyObject *PyTuple_GET_ITEM(PyObject *items, Py_ssize_t at)
    PyObject *PyLong_FromLongLong(long long number)
    int PyDict_SetItem(PyObject *items, PyObject *key, PyObject *value)


cdef enum:
    CODES_COUNT = 4
    KINDS = 2 * CODES_COUNT  # of requests: by code, and whether they are one way

cdef i64 CODES[CODES_COUNT]
CODES[:] = [SEND_MESSAGE_V2, SEND_MESSAGE, SEND_BATCH_MESSAGE, END_TRANSACTION]


cdef void count_requests(Row *columns, i64 messages, i64 elapsed, i64 *counts, i64 *times) noexcept:
    """Adds the requests of the first `messages` columns, each of which took `elapsed`, to counts and times by kind."""
    cdef i64 n = 0, code, kind
    while n < messages:
        for code in range(CODES_COUNT):
            if columns[CODE][n] == CODES[code]:
                kind = 2 * code + (columns[ONEWAY][n] != 0)
                counts[kind] += 1
                times[kind] += elapsed
                break
        n += max(1, columns[MESSAGES][n])


cdef bint may_be_send(Bytes data, i64 start, i64 end) noexcept:
    """True if data[start:end] begins with a frame whose header may be a send's or an END_TRANSACTION's: those of most
    other requests begin with their code."""
    if end - start < 20:
        return False
    header = start + 8
    if data[start + 4] == JSON:
        first, digit = data[header], data[header + 8]
        if not equals(data, header, 8, b'{"code":') or not 48 <= digit <= 57:
            return first == 123 or first == 32 or first == 10 or first == 13 or first == 9
        return (
            equals(data, header + 8, 4, b"310,")
            or equals(data, header + 8, 4, b"320,")
            or equals(data, header + 8, 3, b"10,")
            or equals(data, header + 8, 3, b"37,")
        )
    return data[start + 4] == ROCKETMQ and load16(data, header) in (
        SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, END_TRANSACTION
    )


cdef bint put_sends(NativePut log, Tables *t, Bytes data, SoFar *found, PyObject *queues, Written *written) noexcept:
    """True if all messages in the columns are in the log now, and their answers written; else nothing has changed.

    `queues`: (topic, queue id) of the queues by their numbers. Of a queue without messages nothing is known here."""
    columns = t.columns
    cdef i64 size = 0, n = 0, start, place, puts = 0, made = 0
    cdef PyObject *key
    cdef PyObject *following[SENDS_MAX]
    cdef PyObject *topics[SENDS_MAX]
    cdef PyObject *end
    cdef PyObject *timestamp
    cdef bint good = True
    if not log.takes_puts():
        return False
    while n < found.messages:
        size += columns[FRAME_SIZE][n]
        n += columns[MESSAGES][n]
    start = log.room_for(size)
    if start < 0:
        return False
    for place in range(found.places):
        key = PyList_GET_ITEM(queues, columns[TOUCHED][place])
        topics[place] = found_in(<PyObject *>log.topics, PyTuple_GET_ITEM(key, 0))
        if topics[place] == NULL or not read_number(found_in(<PyObject *>log.offsets, key), &columns[NEXT_OFFSET][place]):
            return False
    now = now_ns()
    written[0] = write_sends(
        t, log.file_at, log.file_size, start, log.file_base, data, found.messages, now // 1_000_000
    )
    if written.messages != found.messages:  # what is there has no size
        return False
    end, timestamp = PyLong_FromLongLong(start + written.size), PyLong_FromLongLong(now // 1_000_000)
    for place in range(found.places):
        following[place] = PyLong_FromLongLong(columns[NEXT_OFFSET][place])
        good = good and following[place] != NULL
        made += 1
    if good and end != NULL and timestamp != NULL:  # and from here on nothing can fail: the keys are there
        for place in range(found.places):
            PyDict_SetItem(<PyObject *>log.offsets, PyList_GET_ITEM(queues, columns[TOUCHED][place]), following[place])
            log.count(<Topic>topics[place], columns[QUEUE_MESSAGES][place], columns[QUEUE_BYTES][place])
            puts += columns[QUEUE_PUTS][place]
        size_records(columns, log.file_at, start, written.messages)
        publish(log.file_at, start, columns[SIZE][0])
        log.ends_at(end, timestamp)
        log.note_time(<Topic>topics[0], written.size, puts, now)
        log.wake()
    else:
        PyErr_Clear()
        good = False
    for place in range(made):
        Py_XDECREF(following[place])
    Py_XDECREF(end)
    Py_XDECREF(timestamp)
    return good


cdef class NativeSends:
    """Takes sends with the arrays of one FastSend, into the log of `log`; None: they are only read."""
    cdef NativePut log
    cdef object numbers, octets
    cdef readonly list queues
    cdef i64 record_max
    cdef Tables tables
    cdef i64 topics_end
    cdef readonly i64 messages
    cdef readonly i64 places
    cdef readonly i64 transactional
    cdef readonly i64 why
    cdef readonly i64 end
    cdef readonly bytes answers
    cdef public object notify  # to be called when messages are in the log; None: nobody has to know
    cdef public object config, topics_version, topics_counter  # what the arrays are made for
    cdef public i64 open_until  # the monotonic clock, in ns: as long holds what FastSend has said
    cdef i64 counts[KINDS]
    cdef i64 times[KINDS]

    def __init__(self, NativePut log):
        self.log = log

    def use(self, i64[::1] numbers, u8[::1] octets, i64 record_max):
        """New arrays, which know no queue, and the size of the largest record."""
        if numbers.shape[0] < 2 * PARTS or numbers[2 * COLUMNS + 1] - numbers[2 * COLUMNS] != ROWS * SENDS_MAX:
            raise ValueError("these are no arrays of send_layout")
        self.numbers, self.octets, self.queues, self.record_max = numbers.base, octets.base, [], record_max
        self.tables, self.topics_end = tables_of(&numbers[0], &octets[0]), 0

    def add_queue(self, bytes topic, i64 queue_id, tuple name):
        """Makes a queue known, with what it is called in the log; False if there is no room for it.

        In TOPICS a topic stands as in a record, its length before it."""
        cdef Tables *t = &self.tables
        cdef Room topics = <Room>t.topics
        cdef Bytes text = topic
        cdef i64 number = len(self.queues), length = len(topic)
        if number == QUEUES_MAX or self.topics_end + 1 + length > t.topics_size or length > 255:
            return False
        slot = queue_slot(t, text, 0, length, queue_id)
        topics[self.topics_end] = length
        copy(topics, self.topics_end + 1, text, 0, length)
        t.queues[number][0], t.queues[number][1], t.queues[number][2] = queue_id, self.topics_end + 1, length
        t.slots[slot] = number + 1
        self.topics_end += 1 + length
        self.queues.append(name)
        return True

    def may_begin(self, data, i64 start):
        """True if data[start:] begins with what may be for here (see may_be_send)."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        may = 0 <= start and may_be_send(<Bytes>view.buf, start, view.len)
        PyBuffer_Release(&view)
        return may

    def take(self, data, i64 start, i64 host, bint writes):
        """Reads the sends of the client at `host` from data[start:], as many as fit into the columns, and `writes` them
        to the log; where the next frame begins.

        `why` says what is there (see read_sends), `messages`, `places` and `transactional` what is in the columns. With
        `answers` all of these messages are in the log, which ends at `end`; None: they are still to be stored."""
        cdef Py_buffer view
        if self.queues is None:
            raise ValueError("there are no arrays yet")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            if not 0 <= start <= view.len:
                raise ValueError(f"{start} of {view.len} bytes")
            return self.take_from(<Bytes>view.buf, start, view.len, host, writes)
        finally:
            PyBuffer_Release(&view)

    def taker(self, fast, connection, i64 host):
        """A Taker of a connection's sends, which answers at once what it has stored."""
        return SendTaker(self, fast, connection, host)

    def requests(self, i64 messages):
        """[(code, oneway, how many)] of the requests of the first `messages` columns."""
        cdef i64 counts[KINDS]
        cdef i64 times[KINDS]
        for kind in range(KINDS):
            counts[kind] = times[kind] = 0
        count_requests(self.tables.columns, min(messages, SENDS_MAX), 0, counts, times)
        return [(CODES[kind // 2], kind % 2 == 1, counts[kind]) for kind in range(KINDS) if counts[kind]]

    def take_counts(self):
        """[(code, oneway, how many, ns of all)] of the requests of less than a millisecond that readers have answered
        since the last call."""
        counted = [
            (CODES[kind // 2], kind % 2 == 1, self.counts[kind], self.times[kind])
            for kind in range(KINDS) if self.counts[kind]
        ]
        for kind in range(KINDS):
            self.counts[kind] = self.times[kind] = 0
        return counted

    def store(self, u8[::1] out, i64 position, i64 base_offset, data, i64 count, i64 store_timestamp):
        """Writes records of the first `count` messages in the columns, read from `data`, to out[position:], all but the
        TOTALSIZE of the first one, and the answers (see write_sends); (how many messages, bytes of the records, the
        answers)."""
        cdef Py_buffer view
        cdef Written written
        if not 0 <= position <= out.shape[0] or not 0 <= count <= SENDS_MAX:
            raise ValueError(f"{count} messages at {position} of {out.shape[0]}")
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            written = write_sends(
                &self.tables, &out[0], out.shape[0], position, base_offset, <Bytes>view.buf, count, store_timestamp
            )
            size_records(self.tables.columns, &out[0], position, written.messages)
        finally:
            PyBuffer_Release(&view)
        answers = PyBytes_FromStringAndSize(<char *>self.tables.answers, written.answers_size)
        return written.messages, written.size, answers

    cdef i64 take_from(self, Bytes data, i64 start, i64 end, i64 host, bint writes) except -1:
        cdef SoFar found
        cdef Written written
        found.messages = found.text_end = found.places = found.transactional = 0
        self.answers = None
        self.why = read_sends(&self.tables, data, &start, end, host, self.record_max, &found)
        if (
            found.messages > 0
            and found.transactional == 0
            and writes
            and self.log is not None
            and put_sends(self.log, &self.tables, data, &found, <PyObject *>self.queues, &written)
        ):
            self.answers = PyBytes_FromStringAndSize(<char *>self.tables.answers, written.answers_size)
            self.end = self.tables.columns[PHYSICAL_OFFSET][0] + written.size
        self.messages, self.places, self.transactional = found.messages, found.places, found.transactional
        return start


cdef class SendTaker(Taker):
    """Stores and answers the sends of one connection out of its reads.

    `fast` is a FastSend, which says if sends may be stored, and answers those that native code cannot."""
    cdef NativeSends sends
    cdef object fast, flow_control, broker, store, topics, write
    cdef i64 host
    cdef bint is_sync_flush, is_timed
    cdef readonly i64 stored  # messages, of this connection alone

    def __init__(self, NativeSends sends, fast, connection, i64 host):
        """`host`: the client's."""
        self.broker, self.flow_control, self.is_sync_flush = fast.broker, fast.flow_control, fast.is_sync_flush
        self.is_timed = fast.latencies is not None
        self.store, self.topics = self.broker.store, self.broker.topic_config_manager
        self.sends, self.fast, self.host, self.write = sends, fast, host, connection.transport.write

    cdef i64 take(self, connection, Bytes data, i64 start, i64 size, i64 began) except -1:
        cdef i64 following, elapsed
        sends = self.sends
        if not may_be_send(data, start, size) or not self.is_open(began):
            return start
        following = sends.take_from(data, start, size, self.host, True)
        if sends.messages == 0:
            return start
        if sends.answers is not None:
            self.stored += sends.messages
        if sends.answers is None or self.is_sync_flush:
            return self.fast.finish(connection, size, following, began)
        if sends.notify is not None:
            sends.notify()
        self.write(sends.answers)
        if self.is_timed:
            elapsed = monotonic_ns() - began
            if elapsed < 1_000_000:
                count_requests(sends.tables.columns, sends.messages, elapsed, sends.counts, sends.times)
            else:
                self.fast.measured(elapsed)
        return following

    cdef bint is_open(self, i64 now) except -1:
        """True if what FastSend said last holds still, or it says so again. A put that takes long holds up the sends
        after it."""
        sends, flow_control, version = self.sends, self.flow_control, self.topics.data_version
        if (
            sends.log is not None
            and now < sends.open_until
            and sends.config is self.broker.config
            and sends.topics_version is version
            and sends.topics_counter == version.counter
        ):
            if not flow_control.turn_began:
                flow_control.begin_turn()
            if (
                sends.log.slow_ms == 0
                and self.store.longest_python_put_ms == 0
                and not flow_control.held_ms
                and not flow_control.long_turns
            ):
                return True
        return self.fast.is_open()
