/* The null server's loop: of requests only the length is read, and each is answered at once with the same bytes. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS = 256, ROOM = 1 << 20, MOST_HEAD = 8192 };

struct peer {
    int fd;
    int64_t missing, begun; /* bytes: of a body, and of a head without an end */
    char head[MOST_HEAD];
};

static int64_t length_in(const char *head, const char *end)
{
    static const char name[] = "\r\ncontent-length:";
    for (const char *line = head; (line = memmem(line, end - line, "\r\n", 2)); line += 2)
        if (strncasecmp(line, name, sizeof name - 1) == 0)
            return atoll(line + sizeof name - 1);
    return 0;
}

/* How many requests end with these bytes; -1 for a head that is too long or wrong. `data` has room for a head before it. */
static int64_t requests_in(struct peer *peer, char *data, int64_t length)
{
    int64_t number = 0;
    data -= peer->begun, length += peer->begun;
    memcpy(data, peer->head, peer->begun);
    for (peer->begun = 0; length;) {
        if (!peer->missing) {
            char *end = memmem(data, length, "\r\n\r\n", 4);
            if (!end) {
                if (length > MOST_HEAD)
                    return -1;
                memcpy(peer->head, data, peer->begun = length);
                break;
            }
            if ((peer->missing = length_in(data, end + 2)) < 0)
                return -1;
            length -= end + 4 - data;
            data = end + 4;
        }
        int64_t here = length < peer->missing ? length : peer->missing;
        peer->missing -= here, data += here, length -= here;
        number += !peer->missing;
    }
    return number;
}

/* Serve at a listening socket until the descriptor `stop` can be read. */
int serve(int listener, int stop, const char *answer, int64_t length)
{
    static char room[MOST_HEAD + ROOM];
    struct epoll_event events[EVENTS], of_stop = {.events = EPOLLIN}, of_listener = {.events = EPOLLIN};
    int epoll = epoll_create1(EPOLL_CLOEXEC), one = 1, fd;
    of_stop.data.ptr = &of_stop;
    of_listener.data.ptr = &of_listener;
    epoll_ctl(epoll, EPOLL_CTL_ADD, stop, &of_stop);
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &of_listener);
    for (;;) {
        int number = epoll_wait(epoll, events, EVENTS, -1);
        if (number < 0 && errno != EINTR)
            return errno;
        for (int i = 0; i < number; i++) {
            struct peer *peer = events[i].data.ptr;
            if ((void *)peer == &of_stop)
                return 0;
            if ((void *)peer == &of_listener) {
                while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
                    struct epoll_event wanted = {.events = EPOLLIN, .data.ptr = peer = calloc(1, sizeof *peer)};
                    if (!peer)
                        return ENOMEM;
                    peer->fd = fd;
                    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &wanted);
                }
                continue;
            }
            int64_t got = recv(peer->fd, room + MOST_HEAD, ROOM, 0);
            int64_t whole = got > 0 ? requests_in(peer, room + MOST_HEAD, got) : -1;
            while (whole > 0 && send(peer->fd, answer, length, MSG_NOSIGNAL) == length)
                whole--;
            if (whole) { /* gone, or not to be understood */
                close(peer->fd);
                free(peer);
            }
        }
    }
}
