"""What other modules of native code use of single.pyx."""

from cpython.object cimport PyObject
from posix.time cimport CLOCK_REALTIME, clock_gettime, timespec

from mqlake.native.append cimport Record
from mqlake.native.prim cimport *
from mqlake.native.serving cimport HISTOGRAM_SIZE

cdef enum:
    PROPERTIES_MAX = 64

cdef extern from "Python.h":
    ctypedef struct PyTypeObject:
        pass
    bint PyLong_CheckExact(PyObject *one)
    long long PyLong_AsLongLong(PyObject *number)
    PyObject *PyDict_GetItemWithError(PyObject *items, PyObject *key)
    PyObject *PyObject_CallNoArgs(PyObject *function)
    PyObject *PyErr_Occurred()
    void PyErr_Clear()
    void Py_INCREF(PyObject *one)
    void Py_DECREF(PyObject *one)
    void Py_XDECREF(PyObject *one)

cdef struct Text:
    const char *at
    Py_ssize_t size

cdef struct Property:
    Text name
    Text value

cdef struct Slots:
    Py_ssize_t topic, body, flag, properties, queue_id, sys_flag, born_timestamp, born_host, store_host
    Py_ssize_t reconsume_times, prepared_offset, store_timestamp, queue_offset, physical_offset
    Py_ssize_t status, append_fields, reason
    Py_ssize_t wrote, committed, file_timestamp, wake
    Py_ssize_t flag_bits

cdef class Topic:
    # a topic that is known: its name, the field of a record, and what was put of it
    cdef readonly str name
    cdef bytes field
    cdef readonly i64 puts
    cdef readonly i64 size

cdef class NativePut:
    cdef readonly i64 puts
    cdef readonly i64 size  # bytes of all records
    cdef readonly i64 slowest_ms
    # the slowest put since somebody set `slow_ms` to 0: how long it took, its topic, the bytes of its body
    cdef public i64 slow_ms
    cdef readonly Topic slow_topic
    cdef readonly i64 slow_size
    cdef i64 histogram_of[HISTOGRAM_SIZE]
    cdef object types, put_ok, append_ok, no_reason, hosts, topics, offsets, special, locked, flags, notify, asleep, file, array
    cdef Slots slots
    cdef PyTypeObject *message_type
    cdef PyTypeObject *batch_type
    cdef PyTypeObject *result_type
    cdef i64 record_max, batch_max
    cdef Room file_at
    cdef i64 file_size, file_base
    cdef i64 *asleep_at
    cdef Property properties[PROPERTIES_MAX]

    cdef bint takes_puts(self) noexcept
    cdef i64 room_for(self, i64 size) noexcept
    cdef void ends_at(self, PyObject *end, PyObject *timestamp) noexcept
    cdef void count(self, Topic topic, i64 messages, i64 size) noexcept
    cdef i64 note_time(self, Topic topic, i64 body_size, i64 puts, i64 began) noexcept
    cdef void wake(self) noexcept
    cdef bint is_locked(self) noexcept
    cdef Bytes read_host(self, PyObject *value) noexcept
    cdef bint read_fields(self, PyObject *message, Record *record) noexcept
    cdef i64 read_properties(self, PyObject *items, i64 *size) noexcept
    cdef void put_properties(self, Room out, i64 at, i64 count) noexcept
    cdef bint put_with(self, PyObject *message, bint is_batch, PyObject *key, PyObject *fields, PyObject *result) noexcept


cdef inline PyObject *slot(PyObject *owner, Py_ssize_t offset) noexcept:
    """What is in a slot, NULL while it is not set. The owner has the reference."""
    return (<PyObject **>(<char *>owner + offset))[0]


cdef inline void fill(PyObject *owner, Py_ssize_t offset, PyObject *value) noexcept:
    """Sets a slot."""
    cdef PyObject **place = <PyObject **>(<char *>owner + offset)
    before = place[0]
    Py_INCREF(value)
    place[0] = value
    Py_XDECREF(before)


cdef inline PyObject *found_in(PyObject *items, PyObject *key) noexcept:
    """What a dictionary has, else NULL."""
    found = PyDict_GetItemWithError(items, key)
    if found == NULL:
        PyErr_Clear()
    return found


cdef inline bint read_number(PyObject *value, i64 *number) noexcept:
    """Whether it is a number of 64 bits."""
    if value == NULL or not PyLong_CheckExact(value):
        return False
    number[0] = PyLong_AsLongLong(value)
    if number[0] == -1 and PyErr_Occurred() != NULL:
        PyErr_Clear()
        return False
    return True


cdef inline i64 now_ns() noexcept:
    cdef timespec now
    clock_gettime(CLOCK_REALTIME, &now)
    return <i64>now.tv_sec * 1_000_000_000 + now.tv_nsec
