/* What a request and its answer cost at least: an epoll loop that cuts frames (4 bytes of length, then so many) and
 * answers each with the same frame of `answer size` bytes, one send a read. Sockets block when they write.
 *
 *     empty_loop ANSWER_SIZE [ANSWERS]      says "empty loop at PORT" on stdout
 *
 * It sends ANSWERS different ones in turn, as a broker does that reads a log; without, the same bytes each time.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_MAX = 256, FDS_MAX = 65536, RECEIVE_SIZE = 1 << 18, ANSWERS_MAX = 512, HEADER_SIZE_MAX = 102 };

static struct { long left; int kept; unsigned char length[4]; } peers[FDS_MAX];
static unsigned char received[RECEIVE_SIZE];

/* How many frames end in the `count` bytes that came. */
static long frames(int fd, long count)
{
    long ended = 0;
    for (long at = 0; at < count;) {
        if (peers[fd].left) {
            long taken = peers[fd].left < count - at ? peers[fd].left : count - at;
            peers[fd].left -= taken;
            at += taken;
            ended += !peers[fd].left;
            continue;
        }
        peers[fd].length[peers[fd].kept++] = received[at++];
        if (peers[fd].kept == 4) {
            unsigned char *b = peers[fd].length;
            peers[fd].left = (long)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
            peers[fd].kept = 0;
        }
    }
    return ended;
}

static int send_all(int fd, const char *data, long size)
{
    while (size > 0) {
        long sent = send(fd, data, size, MSG_NOSIGNAL);
        if (sent <= 0)
            return 0;
        data += sent;
        size -= sent;
    }
    return 1;
}

int main(int argc, char **argv)
{
    long size = argc > 1 ? atol(argv[1]) : 110, walks = argc > 2 ? atol(argv[2]) : 0, next = 0;
    long count_max = walks > ANSWERS_MAX ? walks : ANSWERS_MAX;
    char *answers = malloc(size * count_max);
    memset(answers, ' ', size * count_max);
    for (long n = 0; n < count_max; n++) {
        unsigned int words[2] = {htonl(size - 4), htonl(size - 8 < HEADER_SIZE_MAX ? size - 8 : HEADER_SIZE_MAX)};
        memcpy(answers + n * size, words, 8);
        memcpy(answers + n * size + 8, "{\"code\":0,", 10);
    }
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096))
        return 1;
    getsockname(listener, (void *)&address, &length);
    printf("empty loop at %d\n", ntohs(address.sin_port));
    fflush(stdout);

    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS_MAX];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
        for (int n = 0; n < ready; n++) {
            int fd = events[n].data.fd;
            if (fd == listener) {
                fd = accept(listener, 0, 0);
                if (fd < 0 || fd >= FDS_MAX)
                    return 1;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                memset(&peers[fd], 0, sizeof peers[fd]);
                event.data.fd = fd;
                epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
                continue;
            }
            long count = recv(fd, received, sizeof received, MSG_DONTWAIT);
            int open = count > 0;
            for (long left = open ? frames(fd, count) : 0; left > 0 && open; left -= ANSWERS_MAX) {
                long together = left < ANSWERS_MAX ? left : ANSWERS_MAX;
                if (next + together > count_max)
                    next = 0;
                open = send_all(fd, answers + size * next, size * together);
                if (walks)
                    next += together;
            }
            if (!open)
                close(fd);
        }
    }
}
