/* The hot path of the load generator: ready-made requests over kept-alive connections, and the times of their answers.
 *
 * It does what worker.py and http_client.py do, in the same order and with the same meaning of every time; what is
 * read of an answer is what http11.py reads. native_client.py fills `struct task` and makes a trace of the rows. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { OK = 200, REFUSED = 1, BROKEN = 2, TIMED_OUT = 3, UNREADABLE = 4, OUT_OF_SOCKETS = 5 };
enum { OPEN, CLOSED, BURST };                    /* loops */
enum { ENDED, STOPPED, TIME_TO_TELL, FULL, LOST = -1 }; /* why `proceed` returns; LOST leaves errno */
enum { HEAD, LENGTH, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, TRAILER, UNTIL_CLOSE, WHOLE };
enum { SECOND = 1000000000, FRESH = 10000000, AFTER_FAILURE = 10000000 }; /* ns */
enum { LARGEST_HEAD = 65536, READ = 262144, RECENT = 256, EVENTS = 256 };

struct row {
    int64_t intended, dispatched, sent, first, done, size, timing_at, timing_length, body_at, body_length, status;
};

struct task {
    const char *address, *port;
    const char *const *payloads;
    const int64_t *lengths;  /* of the payloads */
    const int32_t *kinds;    /* of the rows; they repeat */
    const int64_t *due;      /* when each of `number` leaves: requests of an open loop, otherwise users */
    const int64_t *order;    /* their rows */
    const int64_t *intended; /* of the rows of an open loop */
    const double *up, *down; /* seconds on an emulated network, or NULL; they repeat */
    int32_t *to_keep;        /* good answers of each kind that are still to be kept */
    const uint8_t *good;     /* which statuses are */
    const uint8_t *held;     /* statuses with which every body is held */
    int64_t payloads_number, kinds_number, number, ways, start, last_start, requests, most, limit, timeout, sweep_every;
    double think_time, down_bandwidth;
    int64_t loop, most_held, stop; /* stop: a descriptor */
    /* What came of it. */
    struct row *rows;
    char *bodies, *timings;
    int64_t rows_number, bodies_length, timings_length, retried, ended, failed;
    int64_t recent[RECENT]; /* rows of good answers since `ended` was set to 0 */
    int64_t recent_number;
};

struct connection {
    LIST_ENTRY(connection) others;
    int fd, is_connecting, waits_to_write, keeps_alive, state, wants_body;
    int64_t row, since, free_since, answers, left, status, size, timing_at, timing_length;
    const char *unsent;
    int64_t unsent_length;
    char *rest, *body;
    int64_t rest_length, rest_room, body_length, body_room;
};

struct later {
    int64_t at, row; /* row: to send, or -1 for a user who asks */
};

struct run {
    struct task *task;
    struct addrinfo *where;
    LIST_HEAD(, connection) idle, busy, gone; /* gone: freed when no event can name them any more */
    struct later *heap;
    int64_t heap_number, heap_room, rows_room, bodies_room, timings_room;
    int64_t position, left, begun, connections, armed, next_sweep;
    struct {
        int64_t at, length;
    } *latest; /* body of each kind: most are the same */
    int epoll, timer;
    char input[LARGEST_HEAD + READ];
};

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * (int64_t)SECOND + now.tv_nsec;
}

/* Room for `needed` items of a size; a machine without memory ends the worker, which its parent reports. */
static void *grown(void *items, int64_t *room, int64_t needed, int64_t size)
{
    if (needed <= *room)
        return items;
    *room = needed > 2 * *room ? needed : 2 * *room;
    items = realloc(items, *room * size);
    if (!items)
        abort();
    return items;
}

static int64_t append(char **bytes, int64_t *length, int64_t *room, const char *more, int64_t number)
{
    *bytes = grown(*bytes, room, *length + number, 1);
    memcpy(*bytes + *length, more, number);
    *length += number;
    return *length - number;
}

static void drop(struct run *run, struct connection *c)
{
    LIST_REMOVE(c, others);
    LIST_INSERT_HEAD(&run->gone, c, others);
    close(c->fd);
    c->fd = -1;
    run->connections--;
}

static void forget_gone(struct run *run)
{
    for (struct connection *c; (c = LIST_FIRST(&run->gone));) {
        LIST_REMOVE(c, others);
        free(c->rest);
        free(c->body);
        free(c);
    }
}

static void call_later(struct run *run, int64_t at, int64_t row)
{
    int64_t i = run->heap_number++;
    run->heap = grown(run->heap, &run->heap_room, run->heap_number, sizeof *run->heap);
    for (; i && run->heap[(i - 1) / 2].at > at; i = (i - 1) / 2)
        run->heap[i] = run->heap[(i - 1) / 2];
    run->heap[i] = (struct later){at, row};
}

static struct later next_of_heap(struct run *run)
{
    struct later first = run->heap[0], last = run->heap[--run->heap_number];
    int64_t i = 0, child;
    for (; (child = 2 * i + 1) < run->heap_number; i = child) {
        child += child + 1 < run->heap_number && run->heap[child + 1].at < run->heap[child].at;
        if (run->heap[child].at >= last.at)
            break;
        run->heap[i] = run->heap[child];
    }
    run->heap[i] = last;
    return first;
}

static int64_t kind_of(struct task *task, int64_t row) { return task->kinds[row % task->kinds_number]; }

static int64_t add_rows(struct run *run, int64_t number)
{
    struct task *task = run->task;
    int64_t row = task->rows_number;
    task->rows_number += number;
    task->rows = grown(task->rows, &run->rows_room, task->rows_number, sizeof *task->rows);
    memset(task->rows + row, 0, number * sizeof *task->rows);
    for (int64_t i = row; i < task->rows_number; i++)
        task->rows[i].body_at = task->rows[i].timing_at = -1;
    return row;
}

static int is_over(struct run *run, int64_t instant)
{
    struct task *task = run->task;
    if (task->most >= 0 && task->rows_number >= task->most)
        return 1;
    return task->requests < 0 ? instant >= task->last_start : run->begun >= task->requests;
}

static void send_row(struct run *run, int64_t row);

/* A user is ready for the next request, or is done; with a duration each sends once, however short it is. */
static void ask(struct run *run, int is_first)
{
    struct task *task = run->task;
    int64_t now = clock_ns();
    if (is_over(run, now) && !(is_first && task->requests < 0)) {
        run->left--;
        return;
    }
    int64_t row = add_rows(run, 1);
    run->begun++;
    task->rows[row].intended = task->loop == CLOSED ? now : task->start;
    if (task->up)
        call_later(run, clock_ns() + (int64_t)(task->up[row % task->ways] * 1e9), row);
    else
        send_row(run, row);
}

/* A request came to its end, whichever it was: an open loop counts it, a user of a closed one goes on. */
static void finish(struct run *run, int64_t row, int64_t status)
{
    struct task *task = run->task;
    task->rows[row].status = status;
    task->ended++;
    if (task->good[status])
        task->recent[task->recent_number++ % RECENT] = row;
    else
        task->failed++;
    if (task->loop == OPEN) {
        run->left--;
        return;
    }
    double pause = task->think_time;
    if (task->down)
        pause += task->down[row % task->ways] + task->rows[row].size / task->down_bandwidth;
    int64_t wait = (int64_t)(pause * 1e9);
    if (status < OK && status != TIMED_OUT && wait < AFTER_FAILURE)
        wait = AFTER_FAILURE;
    int64_t at = clock_ns() + wait;
    if (is_over(run, at))
        run->left--;
    else if (wait)
        call_later(run, at, -1);
    else
        ask(run, 0);
}

static int is_of_sockets(int error)
{
    return error == EMFILE || error == ENFILE || error == EADDRNOTAVAIL || error == ENOBUFS || error == ENOMEM;
}

static void connect_for(struct run *run, int64_t row)
{
    if (run->connections >= run->task->limit) {
        finish(run, row, OUT_OF_SOCKETS);
        return;
    }
    int one = 1, fd = socket(run->where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct connection *c = fd < 0 ? NULL : calloc(1, sizeof *c);
    struct epoll_event wanted = {.events = EPOLLIN | EPOLLOUT, .data.ptr = c};
    if (c)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!c || (connect(fd, run->where->ai_addr, run->where->ai_addrlen) && errno != EINPROGRESS) ||
        epoll_ctl(run->epoll, EPOLL_CTL_ADD, fd, &wanted)) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        free(c);
        finish(run, row, is_of_sockets(error) ? OUT_OF_SOCKETS : REFUSED);
        return;
    }
    run->connections++;
    c->fd = fd;
    c->is_connecting = c->waits_to_write = 1;
    c->row = row;
    c->since = clock_ns();
    LIST_INSERT_HEAD(&run->busy, c, others);
}

static void fail(struct run *run, struct connection *c, int64_t status)
{
    int64_t row = c->row;
    drop(run, c);
    finish(run, row, status);
}

/* The connection has ended: a server may have closed it before it saw a request that reused it. */
static void lost(struct run *run, struct connection *c)
{
    int64_t row = c->row;
    if (row >= 0 && c->answers && !run->task->rows[row].first) {
        drop(run, c);
        run->task->retried++;
        connect_for(run, row);
    } else if (row >= 0) {
        fail(run, c, BROKEN);
    } else {
        drop(run, c);
    }
}

static void write_on(struct run *run, struct connection *c)
{
    int64_t sent = send(c->fd, c->unsent, c->unsent_length, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) {
        lost(run, c);
        return;
    }
    c->unsent += sent > 0 ? sent : 0;
    c->unsent_length -= sent > 0 ? sent : 0;
    if (c->waits_to_write == (c->unsent_length > 0))
        return;
    c->waits_to_write = c->unsent_length > 0;
    struct epoll_event wanted = {.events = EPOLLIN | (c->waits_to_write ? EPOLLOUT : 0), .data.ptr = c};
    epoll_ctl(run->epoll, EPOLL_CTL_MOD, c->fd, &wanted);
}

static void ask_over(struct run *run, struct connection *c, int64_t row, int64_t now)
{
    struct task *task = run->task;
    int64_t kind = kind_of(task, row);
    c->row = row;
    c->is_connecting = 0;
    c->since = task->rows[row].dispatched; /* it waits to be answered, and has waited for the connection itself */
    c->state = HEAD;
    c->keeps_alive = 1;
    c->status = c->size = c->left = c->rest_length = c->body_length = 0;
    c->timing_at = -1;
    c->unsent = task->payloads[kind];
    c->unsent_length = task->lengths[kind];
    task->rows[row].sent = now;
    write_on(run, c);
}

/* Over a connection that is free, or over a new one: no request waits for another one's connection. */
static void send_row(struct run *run, int64_t row)
{
    int64_t now = clock_ns();
    char byte;
    run->task->rows[row].dispatched = now;
    for (struct connection *c; (c = LIST_FIRST(&run->idle));) { /* the one used last: others may be closed by now */
        if (now - c->free_since > FRESH && (recv(c->fd, &byte, 1, MSG_PEEK) >= 0 || errno != EAGAIN)) {
            drop(run, c);
            continue;
        }
        LIST_REMOVE(c, others);
        LIST_INSERT_HEAD(&run->busy, c, others);
        ask_over(run, c, row, now);
        return;
    }
    connect_for(run, row);
}

enum { TIMING, CONNECTION, ENCODING, SIZE, HEADERS };
static const char *const NAMES[HEADERS] = {"x-paceline:", "connection:", "transfer-encoding:", "content-length:"};

struct text {
    const char *at; /* NULL for none */
    int64_t length;
};

/* The values of the first headers of these names. */
static void find_headers(const char *head, int64_t length, struct text found[HEADERS])
{
    const char *line = memmem(head, length, "\r\n", 2) + 2, *end;
    for (; (end = memmem(line, head + length - line, "\r\n", 2)); line = end + 2)
        for (int i = 0; i < HEADERS; i++) {
            int64_t size = strlen(NAMES[i]);
            if (!found[i].at && end - line >= size && strncasecmp(line, NAMES[i], size) == 0)
                found[i] = (struct text){line + size, end - line - size};
        }
}

static int has_word(struct text value, const char *word)
{
    int64_t size = strlen(word);
    for (int64_t i = 0; value.at && i + size <= value.length; i++)
        if (strncasecmp(value.at + i, word, size) == 0)
            return 1;
    return 0;
}

/* A number without a sign, saturated; -1 if it is none. */
static int64_t number_in(struct text text, int base)
{
    const char *at = text.at, *end = at + text.length;
    int64_t number = 0;
    while (at < end && isspace((unsigned char)*at))
        at++;
    while (at < end && isspace((unsigned char)end[-1]))
        end--;
    if (base == 16 && end - at > 2 && at[0] == '0' && tolower(at[1]) == 'x')
        at += 2;
    if (at == end)
        return -1;
    for (; at < end; at++) {
        int letter = tolower((unsigned char)*at);
        int digit = letter >= '0' && letter <= '9' ? letter - '0' : letter >= 'a' ? letter - 'a' + 10 : base;
        if (digit >= base)
            return -1;
        number = number > INT64_MAX / 32 ? INT64_MAX / 2 : number * base + digit;
    }
    return number;
}

/* The head with the line break of its last line; 0 if it is not of HTTP. */
static int read_head(struct run *run, struct connection *c, const char *head, int64_t length)
{
    struct task *task = run->task;
    struct text found[HEADERS] = {0};
    const char *code = head + 9;
    if (length < 14 || head[8] != ' ' || (code[3] != ' ' && code[3] != '\r') ||
        (c->status = number_in((struct text){code, 3}, 10)) < 0 || isspace(code[0]) || isspace(code[2]))
        return 0;
    c->wants_body = task->held[c->status] || (c->status == OK && task->to_keep[kind_of(task, c->row)] > 0);
    find_headers(head, length, found);
    if (found[TIMING].at) {
        c->timing_length = found[TIMING].length;
        c->timing_at =
            append(&task->timings, &task->timings_length, &run->timings_room, found[TIMING].at, c->timing_length);
    }
    c->keeps_alive = !has_word(found[CONNECTION], "close") &&
                     (head[7] != '0' || has_word(found[CONNECTION], "keep-alive"));
    c->left = 0;
    if (has_word(found[ENCODING], "chunked")) {
        c->state = CHUNK_SIZE;
    } else if (found[SIZE].at || c->status == 204 || c->status == 304) {
        c->left = found[SIZE].at ? number_in(found[SIZE], 10) : 0;
        c->state = LENGTH;
    } else {
        c->keeps_alive = 0;
        c->state = UNTIL_CLOSE;
    }
    return c->left >= 0;
}

static void take(struct connection *c, const char *data, int64_t length)
{
    if (c->wants_body)
        append(&c->body, &c->body_length, &c->body_room, data, length);
}

static int read_chunk_line(struct connection *c, const char *line, int64_t length)
{
    if (c->state == TRAILER) {
        c->state = length ? TRAILER : WHOLE;
    } else if (c->state == CHUNK_END) {
        c->state = CHUNK_SIZE;
        return !length;
    } else {
        const char *end = memchr(line, ';', length);
        c->left = number_in((struct text){line, end ? end - line : length}, 16);
        c->state = c->left ? CHUNK_DATA : TRAILER;
        return c->left >= 0;
    }
    return 1;
}

/* All that came and was not yet understood; what must wait for more goes to `rest`. 0 if it is not HTTP/1.1. */
static int feed(struct run *run, struct connection *c, const char *data, int64_t length)
{
    c->rest_length = 0;
    while (c->state == HEAD) {
        static const char start[] = "HTTP/1.";
        if (!length)
            return 1;
        if (memcmp(data, start, length < 7 ? length : 7) != 0)
            return 0;
        const char *end = memmem(data, length, "\r\n\r\n", 4);
        if (!end) {
            append(&c->rest, &c->rest_length, &c->rest_room, data, length);
            return length <= LARGEST_HEAD;
        }
        if (!read_head(run, c, data, end + 2 - data))
            return 0;
        length -= end + 4 - data;
        data = end + 4;
        if (c->status >= 100 && c->status < 200) /* an interim answer; the real one follows */
            c->state = HEAD;
    }
    if (c->state == LENGTH || c->state == UNTIL_CLOSE) {
        take(c, data, length);
        if (c->state == LENGTH && !(c->left -= length))
            c->state = WHOLE;
        return c->left >= 0;
    }
    while (c->state != WHOLE) {
        if (c->state == CHUNK_DATA) {
            int64_t here = length < c->left ? length : c->left;
            take(c, data, here);
            data += here, length -= here, c->left -= here;
            if (c->left)
                return 1;
            c->state = CHUNK_END;
        }
        const char *end = memmem(data, length, "\r\n", 2);
        if (!end) {
            append(&c->rest, &c->rest_length, &c->rest_room, data, length);
            return length <= LARGEST_HEAD && !(c->state == CHUNK_END && length > 1);
        }
        if (!read_chunk_line(c, data, end - data))
            return 0;
        length -= end + 2 - data;
        data = end + 2;
    }
    return !length;
}

/* Keep the body of a row, if it is one to keep; those that are the same take the room of one. */
static void hold(struct run *run, struct connection *c, struct row *row)
{
    struct task *task = run->task;
    int64_t kind = kind_of(task, c->row), is_kept = c->status == OK && task->to_keep[kind] > 0;
    if (!is_kept && !task->held[c->status])
        return;
    task->to_keep[kind] -= is_kept;
    if (run->latest[kind].length != c->body_length ||
        memcmp(task->bodies + run->latest[kind].at, c->body, c->body_length) != 0) {
        run->latest[kind].at = append(&task->bodies, &task->bodies_length, &run->bodies_room, c->body, c->body_length);
        run->latest[kind].length = c->body_length;
    }
    row->body_at = run->latest[kind].at;
    row->body_length = c->body_length;
}

static void answered(struct run *run, struct connection *c, int64_t now)
{
    int64_t number = c->row, status = c->status;
    struct row *row = run->task->rows + number;
    row->done = now;
    row->size = c->size;
    row->timing_at = c->timing_at;
    row->timing_length = c->timing_length;
    if (c->wants_body)
        hold(run, c, row);
    c->answers++;
    if (c->keeps_alive && c->state == WHOLE && !c->unsent_length) {
        LIST_REMOVE(c, others);
        LIST_INSERT_HEAD(&run->idle, c, others);
        c->row = -1;
        c->free_since = now;
    } else {
        drop(run, c);
    }
    finish(run, number, status);
}

static void read_from(struct run *run, struct connection *c)
{
    int64_t kept = c->rest_length;
    memcpy(run->input, c->rest, kept);
    int64_t got = recv(c->fd, run->input + kept, READ, 0), now = clock_ns();
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got > 0 && c->row < 0) { /* it speaks without being asked */
        drop(run, c);
    } else if (got > 0) {
        struct row *row = run->task->rows + c->row;
        row->first = row->first ? row->first : now;
        c->size += got;
        if (!feed(run, c, run->input, kept + got))
            fail(run, c, UNREADABLE);
        else if (c->state == WHOLE)
            answered(run, c, now);
    } else if (got == 0 && c->row >= 0 && c->state == UNTIL_CLOSE) {
        answered(run, c, now);
    } else {
        lost(run, c);
    }
}

static void serve_event(struct run *run, struct connection *c, uint32_t events)
{
    if (c->is_connecting) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
        if (error)
            fail(run, c, is_of_sockets(error) ? OUT_OF_SOCKETS : REFUSED);
        else if (events & EPOLLOUT)
            ask_over(run, c, c->row, clock_ns());
        return;
    }
    if (events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        read_from(run, c);
    if (events & EPOLLOUT && c->fd >= 0 && c->row >= 0 && c->unsent_length)
        write_on(run, c);
}

/* One look at all requests under way now and then costs less than a timer for each. */
static void sweep(struct run *run, int64_t now)
{
    for (struct connection *c = LIST_FIRST(&run->busy), *next; c; c = next) {
        next = LIST_NEXT(c, others);
        if (c->since <= now - run->task->timeout)
            fail(run, c, TIMED_OUT);
    }
    run->next_sweep = now + run->task->sweep_every;
}

static void act_on_time(struct run *run, int64_t now)
{
    struct task *task = run->task;
    for (; run->left && run->position < task->number && task->due[run->position] <= now; run->position++) {
        if (task->loop == OPEN)
            send_row(run, task->order[run->position]);
        else
            ask(run, 1);
    }
    while (run->left && run->heap_number && run->heap[0].at <= now) {
        struct later one = next_of_heap(run);
        if (one.row < 0)
            ask(run, 0);
        else
            send_row(run, one.row);
    }
}

/* Let the timer wake the loop for what is due next; one that rings too early costs less than one set for each. */
static void set_timer(struct run *run)
{
    int64_t next = run->position < run->task->number ? run->task->due[run->position] : INT64_MAX;
    if (run->heap_number && run->heap[0].at < next)
        next = run->heap[0].at;
    if (next == INT64_MAX || (run->armed && run->armed <= next))
        return;
    run->armed = next;
    struct itimerspec at = {.it_value = {next / SECOND, next % SECOND}};
    timerfd_settime(run->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* Prepare all; NULL with errno if that is not possible. */
struct run *begin(struct task *task)
{
    struct run *run = calloc(1, sizeof *run);
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
    if (!run || getaddrinfo(task->address, task->port, &hints, &run->where)) {
        errno = run ? EADDRNOTAVAIL : ENOMEM;
        return NULL;
    }
    run->task = task;
    run->left = task->number;
    task->rows = grown(NULL, &run->rows_room, 4096, sizeof *task->rows);
    if (task->loop == OPEN) {
        add_rows(run, task->number);
        for (int64_t i = 0; i < task->number; i++)
            task->rows[i].intended = task->intended[i];
    }
    run->latest = calloc(task->payloads_number, sizeof *run->latest);
    run->epoll = epoll_create1(EPOLL_CLOEXEC);
    run->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event of_timer = {.events = EPOLLIN | EPOLLET, .data.ptr = &run->timer};
    struct epoll_event of_stop = {.events = EPOLLIN, .data.ptr = run};
    if (!run->latest || run->epoll < 0 || run->timer < 0 ||
        epoll_ctl(run->epoll, EPOLL_CTL_ADD, run->timer, &of_timer) ||
        epoll_ctl(run->epoll, EPOLL_CTL_ADD, task->stop, &of_stop))
        return NULL;
    return run;
}

/* The bodies were read, and no row names one: those that come from now on are stored in their place. */
void forget_bodies(struct run *run)
{
    for (int64_t i = 0; i < run->task->payloads_number; i++)
        run->latest[i].length = -1;
    run->task->bodies_length = 0;
}

/* Go on until everything has ended or something is to be done elsewhere, which may be before `until`. */
int proceed(struct run *run, int64_t until)
{
    struct task *task = run->task;
    struct epoll_event events[EVENTS];
    while (run->left) {
        int64_t now = clock_ns();
        act_on_time(run, now);
        forget_gone(run);
        if (!run->left)
            break;
        if (task->bodies_length > task->most_held)
            return FULL;
        if (now >= until)
            return TIME_TO_TELL;
        set_timer(run);
        int64_t wait = (until < run->next_sweep ? until : run->next_sweep) - now;
        int is_stopped = 0, number = epoll_wait(run->epoll, events, EVENTS, wait > 0 ? wait / 1000000 + 1 : 0);
        if (number < 0 && errno != EINTR)
            return LOST;
        for (int i = 0; i < number; i++) {
            struct connection *c = events[i].data.ptr;
            if ((void *)c == run)
                is_stopped = 1;
            else if ((void *)c == &run->timer)
                run->armed = 0;
            else if (c->fd >= 0)
                serve_event(run, c, events[i].events);
        }
        if (is_stopped)
            return STOPPED;
        if (now >= run->next_sweep && number >= 0 && number < EVENTS) /* all that had come by `now` was read */
            sweep(run, now);
    }
    return ENDED;
}

/* End all connections; the rows stay. */
void end(struct run *run)
{
    while (!LIST_EMPTY(&run->idle))
        drop(run, LIST_FIRST(&run->idle));
    while (!LIST_EMPTY(&run->busy))
        drop(run, LIST_FIRST(&run->busy));
    forget_gone(run);
    close(run->epoll);
    close(run->timer);
}
