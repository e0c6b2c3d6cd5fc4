"""What native code asks of the system: one write of many stretches of memory to a socket."""

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
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
