"""What native code asks of the system, Linux's: clocks, sockets, epoll, locks."""

from libc.stdint cimport uint32_t, uint64_t
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, timespec
from posix.unistd cimport read, write

from mqlake.native.prim cimport i64

cdef extern from "<sys/socket.h>" nogil:
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    ssize_t recv(int fd, void *data, size_t size, int flags)
    ssize_t send(int fd, const void *data, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLL_CTL_MOD
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_wait(int epoll, epoll_event *events, int count, int timeout)
    int epoll_ctl(int epoll, int what, int fd, epoll_event *event)

cdef extern from "<poll.h>" nogil:
    enum:
        POLLIN
    struct pollfd:
        int fd
        short events
        short revents

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <poll.h>
    #include <time.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    /* ppoll without _GNU_SOURCE; a signal ends it, as it ends everything that waits */
    static int mq_ppoll(struct pollfd *polled, unsigned long count, struct timespec *at_most) {
        return (int)syscall(SYS_ppoll, polled, count, at_most, (void *)0, (size_t)0);
    }
    """
    int ppoll "mq_ppoll" (pollfd *polled, unsigned long count, timespec *at_most)

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_lock(pthread_mutex_t *lock)
    int pthread_mutex_unlock(pthread_mutex_t *lock)


cdef inline i64 clock_ns(int which) noexcept nogil:
    """The time of one of the system's clocks, in nanoseconds."""
    cdef timespec now
    clock_gettime(which, &now)
    return <i64>now.tv_sec * 1_000_000_000 + now.tv_nsec
