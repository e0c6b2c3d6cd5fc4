# cython: language_level=3, infer_types=True, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, embedsignature=False
"""One message or batch of a Python program, from the object that it is to records, and to the object that answers it.

    MessageExtBrokerInner ─ slots, by their offsets ─▶ Record ─ write_record, append_items, publish ─▶ mapped file
    PutMessageResult      ◀─ new objects, in slots ─────────────────────────────────────────┘

The interpreter lock is held from the first line to the last, so no other thread of Python sees anything half done.

It does usual messages, and answers None, having changed nothing, for all that is not one, has the wrong type or does
not fit: CommitLog does those, and raises or refuses where that is due.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_Next
from cpython.object cimport PyObject

from mqlake.native.append cimport *
from mqlake.native.serving cimport *

from mqlake.native.checksums import crc32_address

cdef extern from "Python.h":
    PyTypeObject *Py_TYPE(PyObject *one)
    bint PyBytes_CheckExact(PyObject *one)
    bint PyDict_CheckExact(PyObject *one)
    bint PyTuple_CheckExact(PyObject *one)
    bint PyUnicode_CheckExact(PyObject *one)
    int PySet_Contains(PyObject *items, PyObject *key)
    const char *PyUnicode_AsUTF8AndSize(PyObject *text, Py_ssize_t *size)
    PyObject *PyLong_FromLongLong(long long number)
    PyObject *PyBytes_FromStringAndSize(const char *data, Py_ssize_t size)
    PyObject *PyTuple_New(Py_ssize_t size)
    PyObject *PyTuple_GET_ITEM(PyObject *items, Py_ssize_t at)
    Py_ssize_t PyTuple_GET_SIZE(PyObject *items)
    void PyTuple_SET_ITEM(PyObject *items, Py_ssize_t at, PyObject *one)
    int PyDict_SetItem(PyObject *items, PyObject *key, PyObject *value)
    PyObject *PyType_GenericAlloc(PyTypeObject *kind, Py_ssize_t items)
    PyObject *Py_None
    PyObject *Py_False

cdef extern from "structmember.h":
    enum:
        T_OBJECT_EX
    ctypedef struct PyMemberDef:
        int type
        Py_ssize_t offset
    ctypedef struct PyMemberDescrObject:
        PyMemberDef *d_member
    PyTypeObject PyMemberDescr_Type

use_crc32(crc32_address())


def slot_offset(kind, name):
    """Where an object of this class has that slot, in bytes. LookupError."""
    found = getattr(kind, name, None)
    cdef PyObject *descriptor = <PyObject *>found
    if Py_TYPE(descriptor) != &PyMemberDescr_Type or (<PyMemberDescrObject *>descriptor).d_member.type != T_OBJECT_EX:
        raise LookupError(f"{kind.__name__} has no slot for {name}")
    return (<PyMemberDescrObject *>descriptor).d_member.offset


cdef inline bint read_int32(PyObject *value, i64 *number) noexcept:
    return read_number(value, number) and -0x80000000LL <= number[0] <= 0x7FFFFFFF


cdef class Topic:
    """A topic that is known: its name, the field of a record, and what was put of it."""

    def __init__(self, name, field):
        self.name, self.field = name, field


cdef class NativePut:
    """`put(message)` is a PutMessageResult, or None when it is not for here.

    `types`: the classes of a message, a batch, a result and a mapped file. `put_ok`, `append_ok`: what a
    result says of a put that went well, and of its append. `hosts` (address, port) → 8 bytes, `topics` name → Topic, and `offsets`
    (topic, queue id) → next queue offset are the caller's; the last is changed. `locked()` says whether the log's lock
    is held. `special`: names of properties that are not for here; `record_max` and `batch_max`: bytes of the largest
    record and batch that are.
    """

    def __init__(self, types, put_ok, append_ok, hosts, topics, offsets, locked, special, record_max, batch_max):
        self.types, self.hosts, self.topics, self.offsets = types, hosts, topics, offsets
        self.put_ok, self.append_ok, self.no_reason = put_ok, append_ok, ""
        self.locked, self.special = locked, frozenset(special)
        self.record_max, self.batch_max = record_max, batch_max
        message, batch, result, mapped_file = types
        self.message_type = <PyTypeObject *><PyObject *>message
        self.batch_type = <PyTypeObject *><PyObject *>batch
        self.result_type = <PyTypeObject *><PyObject *>result
        slots = &self.slots
        slots.topic, slots.body = slot_offset(message, "topic"), slot_offset(message, "body")
        slots.flag, slots.sys_flag = slot_offset(message, "flag"), slot_offset(message, "sys_flag")
        slots.properties, slots.queue_id = slot_offset(message, "properties"), slot_offset(message, "queue_id")
        slots.born_timestamp = slot_offset(message, "born_timestamp")
        slots.born_host, slots.store_host = slot_offset(message, "born_host"), slot_offset(message, "store_host")
        slots.reconsume_times = slot_offset(message, "reconsume_times")
        slots.prepared_offset = slot_offset(message, "prepared_transaction_offset")
        slots.store_timestamp = slot_offset(message, "store_timestamp")
        slots.queue_offset = slot_offset(message, "queue_offset")
        slots.physical_offset = slot_offset(message, "physical_offset")
        slots.status, slots.append_fields = slot_offset(result, "status"), slot_offset(result, "append_fields")
        slots.reason = slot_offset(result, "reason")
        slots.wrote, slots.committed = slot_offset(mapped_file, "wrote_position"), slot_offset(mapped_file, "committed_position")
        slots.file_timestamp, slots.wake = slot_offset(mapped_file, "store_timestamp"), slot_offset(mapped_file, "wake_position")

    def open(self, flags, i64[::1] asleep, notify):
        """Puts are for here while `flags.flag_bits` is 0. `notify` is called after a put if asleep[0] is not 0."""
        self.slots.flag_bits = slot_offset(type(flags), "flag_bits")
        self.flags, self.asleep, self.notify = flags, asleep.base, notify
        self.asleep_at = &asleep[0]

    def use(self, mapped_file, array, base):
        """The file that is written from now on, its bytes and the offset of its first one; None: no file."""
        cdef u8[::1] data
        self.file = None
        if mapped_file is not None:
            data = array
            self.file_at, self.file_size, self.file_base = &data[0], data.shape[0], base
            self.array, self.file = array, mapped_file

    def histogram(self):
        """Puts by how many ms they took; the last number is of all that took longer."""
        return [self.histogram_of[ms] for ms in range(HISTOGRAM_SIZE)]

    def put(self, message):
        cdef PyObject *one = <PyObject *>message
        cdef PyObject *key
        cdef PyObject *fields
        cdef PyObject *result
        is_batch = Py_TYPE(one) == self.batch_type
        if not is_batch and Py_TYPE(one) != self.message_type:
            return None
        # first of all: making them may run the garbage collector, which may run anything
        key, fields, result = PyTuple_New(2), PyTuple_New(9), PyType_GenericAlloc(self.result_type, 0)
        answer = None
        if key == NULL or fields == NULL or result == NULL:
            PyErr_Clear()
        elif self.put_with(one, is_batch, key, fields, result):
            answer = <object>result
        Py_XDECREF(key)
        Py_XDECREF(fields)
        Py_XDECREF(result)
        return answer

    cdef bint is_locked(self) noexcept:
        answer = PyObject_CallNoArgs(<PyObject *>self.locked)
        if answer == NULL:
            PyErr_Clear()
            return True
        Py_DECREF(answer)
        return answer != Py_False

    cdef Bytes read_host(self, PyObject *value) noexcept:
        """A host that is known, with an IPv4 address, as a record has it; NULL if it is none."""
        if value == NULL or not PyTuple_CheckExact(value) or PyTuple_GET_SIZE(value) != 2:
            return NULL
        # of these classes alone: comparing others may run code of anybody
        if not PyUnicode_CheckExact(PyTuple_GET_ITEM(value, 0)) or not PyLong_CheckExact(PyTuple_GET_ITEM(value, 1)):
            return NULL
        known = found_in(<PyObject *>self.hosts, value)
        if known == NULL or PyBytes_GET_SIZE(<object>known) != HOST_LENGTH_V4:
            return NULL
        return <Bytes>PyBytes_AS_STRING(<object>known)

    cdef bint read_fields(self, PyObject *message, Record *record) noexcept:
        """Whether the numbers and hosts of a message are those of a usual one; they are in the record then."""
        slots = &self.slots
        record.magic = MESSAGE_MAGIC_CODE
        record.born_host_length = record.store_host_length = HOST_LENGTH_V4
        record.born_host = self.read_host(slot(message, slots.born_host))
        record.store_host = self.read_host(slot(message, slots.store_host))
        return (
            record.born_host != NULL
            and record.store_host != NULL
            and read_int32(slot(message, slots.flag), &record.flag)
            and read_int32(slot(message, slots.queue_id), &record.queue_id)
            and read_int32(slot(message, slots.sys_flag), &record.sys_flag)
            and read_int32(slot(message, slots.reconsume_times), &record.reconsume_times)
            and read_number(slot(message, slots.born_timestamp), &record.born_timestamp)
            and read_number(slot(message, slots.prepared_offset), &record.prepared_offset)
            and record.sys_flag & ~<i64>FAST_PUT_FLAGS == 0
        )

    cdef i64 read_properties(self, PyObject *items, i64 *size) noexcept:
        """How many properties there are, -1 if they are not usual; their names and values are in `properties` then, and
        `size` is their bytes as a record has them."""
        cdef Py_ssize_t at = 0
        cdef PyObject *name = NULL
        cdef PyObject *value = NULL
        cdef Property *one
        cdef i64 count = 0
        size[0] = 0
        while PyDict_Next(<object>items, &at, &name, &value):
            if value == Py_None:
                continue
            if count == PROPERTIES_MAX or not PyUnicode_CheckExact(name) or not PyUnicode_CheckExact(value):
                return -1
            if PySet_Contains(<PyObject *>self.special, name) != 0:
                PyErr_Clear()
                return -1
            one = &self.properties[count]
            one.name.at = PyUnicode_AsUTF8AndSize(name, &one.name.size)
            one.value.at = PyUnicode_AsUTF8AndSize(value, &one.value.size)
            if one.name.at == NULL or one.value.at == NULL:
                PyErr_Clear()
                return -1
            size[0] += one.name.size + one.value.size + 2
            count += 1
        return count

    cdef void put_properties(self, Room out, i64 at, i64 count) noexcept:
        cdef Property *one
        for n in range(count):
            one = &self.properties[n]
            at = put(out, at, <Bytes>one.name.at, 0, one.name.size)
            out[at] = NAME_VALUE_SEPARATOR
            at = put(out, at + 1, <Bytes>one.value.at, 0, one.value.size)
            out[at] = PROPERTY_SEPARATOR
            at += 1

    cdef bint takes_puts(self) noexcept:
        """True if there is a file to write, and nothing stops puts or holds the log's lock."""
        flags = slot(<PyObject *>self.flags, self.slots.flag_bits)
        return self.file is not None and is_zero(flags) and not self.is_locked()

    cdef i64 room_for(self, i64 size) noexcept:
        """Where in the file so many bytes go; -1 where somebody else has to see to their place."""
        cdef i64 start = 0, wake = 0
        mapped_file = <PyObject *>self.file
        if not read_number(slot(mapped_file, self.slots.wrote), &start):
            return -1
        if not read_number(slot(mapped_file, self.slots.wake), &wake):
            return -1
        if start < 0 or start + size > min(wake, self.file_size - END_FILE_MIN_BLANK_LENGTH):
            return -1
        return start

    cdef void ends_at(self, PyObject *end, PyObject *timestamp) noexcept:
        """Tells the file where its records end now, and when the last one was stored."""
        mapped_file = <PyObject *>self.file
        fill(mapped_file, self.slots.wrote, end)
        fill(mapped_file, self.slots.committed, end)
        fill(mapped_file, self.slots.file_timestamp, timestamp)

    cdef void count(self, Topic topic, i64 messages, i64 size) noexcept:
        self.puts += messages
        self.size += size
        topic.puts += messages
        topic.size += size

    cdef i64 note_time(self, Topic topic, i64 body_size, i64 puts, i64 began) noexcept:
        """How many ms the puts took, which were one step."""
        took = max((now_ns() - began) // 1_000_000, 0)
        self.slowest_ms = max(self.slowest_ms, took)
        if took >= self.slow_ms:
            self.slow_ms, self.slow_topic, self.slow_size = took, topic, body_size
        self.histogram_of[min(took, HISTOGRAM_SIZE - 1)] += puts
        return took

    cdef void wake(self) noexcept:
        """Calls who waits for messages."""
        if self.asleep_at[0] != 0:
            Py_XDECREF(PyObject_CallNoArgs(<PyObject *>self.notify))
            PyErr_Clear()

    cdef bint put_with(self, PyObject *message, bint is_batch, PyObject *key, PyObject *fields, PyObject *result) noexcept:
        """Whether it was put. Nothing in it runs code of anybody else before the end, so what it reads stays as it is.
        """
        cdef Record record
        cdef i64 count = 1, size, start, queue_offset = 0, properties_size = 0
        cdef PyObject *places
        cdef PyObject *sizes
        cdef PyObject *made[9]
        cdef bint good
        slots = &self.slots
        topic_name, queue_id = slot(message, slots.topic), slot(message, slots.queue_id)
        body, properties = slot(message, slots.body), slot(message, slots.properties)
        if not self.takes_puts():
            return False
        if topic_name == NULL or not PyUnicode_CheckExact(topic_name) or body == NULL or not PyBytes_CheckExact(body):
            return False
        if properties == NULL or not PyDict_CheckExact(properties):
            return False
        known = found_in(<PyObject *>self.topics, topic_name)
        pieces = self.read_properties(properties, &properties_size)
        if known == NULL or pieces < 0 or not self.read_fields(message, &record):
            return False
        topic = <Topic>known
        record.topic, record.topic_length = <Bytes>PyBytes_AS_STRING(topic.field), PyBytes_GET_SIZE(topic.field)
        data, body_size = <Bytes>PyBytes_AS_STRING(<object>body), PyBytes_GET_SIZE(<object>body)
        if is_batch:
            count = count_items(data, body_size) if pieces == 0 and body_size <= self.batch_max else 0
            if count == 0:
                return False
            size = body_size + count * (HEAD_SIZE_V4 + record.topic_length + 2 - ITEM_SIZE_MIN)
        else:
            record.body, record.body_length, record.properties_length = data, body_size, properties_size
            size = size_of(&record)
            if size > self.record_max:
                return False
        start = self.room_for(size)
        if start < 0:
            return False
        end = start + size
        set_item(key, 0, topic_name)
        set_item(key, 1, queue_id)
        before = found_in(<PyObject *>self.offsets, key)
        good = before == NULL or read_number(before, &queue_offset)
        now = now_ns()
        record.store_timestamp = now // 1_000_000
        offset, following = PyLong_FromLongLong(queue_offset), PyLong_FromLongLong(queue_offset + count)
        place, end_object = PyLong_FromLongLong(self.file_base + start), PyLong_FromLongLong(end)
        timestamp, size_object = PyLong_FromLongLong(record.store_timestamp), PyLong_FromLongLong(size)
        count_object = PyLong_FromLongLong(count)
        if is_batch:
            places, sizes = PyBytes_FromStringAndSize(NULL, 8 * count), PyBytes_FromStringAndSize(NULL, 4 * count)
        else:
            places = sizes = Py_None
            Py_INCREF(places)
            Py_INCREF(sizes)
        made = [offset, following, place, end_object, timestamp, size_object, count_object, places, sizes]
        for one in made:
            good = good and one != NULL
        first_size = size
        if good and is_batch:
            found = append_items(
                self.file_at, start, self.file_size - start, data, body_size, &record, NULL, 0, queue_offset,
                self.file_base, size, <i64 *>PyBytes_AS_STRING(<object>places), <i32 *>PyBytes_AS_STRING(<object>sizes),
            )
            good = found[1] == size
            first_size = (<i32 *>PyBytes_AS_STRING(<object>sizes))[0]
        good = good and PyDict_SetItem(<PyObject *>self.offsets, key, following) == 0
        if good:  # and from here on nothing can fail
            if not is_batch:
                record.body_crc = crc32(data, 0, body_size)
                after = write_record(self.file_at, start, &record, queue_offset, self.file_base + start)
                self.put_properties(self.file_at, after, pieces)
                terminate(self.file_at, end)
            publish(self.file_at, start, first_size)
            self.ends_at(end_object, timestamp)
            set_item(fields, 0, <PyObject *>self.append_ok)
            set_item(fields, 1, place)
            set_item(fields, 2, size_object)
            set_item(fields, 3, slot(message, slots.store_host))
            set_item(fields, 4, timestamp)
            set_item(fields, 5, offset)
            set_item(fields, 6, places)
            set_item(fields, 7, count_object)
            self.count(topic, count, size)
            held = PyLong_FromLongLong(self.note_time(topic, body_size, 1, now))
            if held == NULL:  # no memory; small numbers are there
                PyErr_Clear()
                held = PyLong_FromLongLong(0)
            PyTuple_SET_ITEM(fields, 8, held)
            fill(result, slots.status, <PyObject *>self.put_ok)
            fill(result, slots.append_fields, fields)
            fill(result, slots.reason, <PyObject *>self.no_reason)
            # last: what a message had in its slots before may run code when it goes
            fill(message, slots.store_timestamp, timestamp)
            fill(message, slots.queue_offset, offset)
            fill(message, slots.physical_offset, place)
            self.wake()
        else:
            PyErr_Clear()
        for one in made:
            Py_XDECREF(one)
        return good


cdef inline bint is_zero(PyObject *value) noexcept:
    cdef i64 number = 1
    return read_number(value, &number) and number == 0


cdef inline void set_item(PyObject *items, Py_ssize_t at, PyObject *value) noexcept:
    """Of a new tuple."""
    Py_INCREF(value)
    PyTuple_SET_ITEM(items, at, value)


cdef i64 count_items(Bytes data, i64 size) noexcept:
    """The messages of a batch; 0 when there are none, or it is damaged."""
    cdef i64 count = 0, item = 0
    while item < size:
        item_size = read_item(data, item, size)[0]
        if item_size == 0:
            return 0
        item += item_size
        count += 1
    return count
