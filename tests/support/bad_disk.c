/* Stands between a process and its files and sockets: fails one call on purpose, or writes down every change.
 *
 * Preloaded. `bad_disk_watch` says below which folder, and to which port, calls count; `bad_disk_arm` makes the n-th of
 * them fail; `bad_disk_record` has every change appended to a file, for a replay that loses some of them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NO_SPACE, IO_ERROR, INTERRUPTED, TORN };
enum { CREATE, WRITE, TRUNCATE, SYNC, RENAME, UNLINK, MKDIR, CONNECT, SEND };
#define FILES 1024
#define LONGEST 4096

static char root[LONGEST], names[FILES][LONGEST], failed_name[LONGEST];
static int port, sockets[FILES], recording = -1, kind, failed_call = -1;
static long calls, target;
static char kinds[100000]; /* of the calls that counted, each as a digit */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

void bad_disk_watch(const char *folder, int watched_port) {
    snprintf(root, LONGEST, "%s", folder);
    port = watched_port;
    calls = target = 0;
    failed_call = -1;
}
void bad_disk_arm(long number, int how) { calls = 0, target = number, kind = how, failed_call = -1; }
void bad_disk_record(int descriptor) { recording = descriptor; }
int bad_disk_failed(void) { return failed_call; }
const char *bad_disk_kinds(void) { return kinds; }
const char *bad_disk_failed_name(void) { return failed_name; }

static int is_watched(const char *path) {
    size_t length = strlen(root);
    /* Shared memory beside a database is not on the disk. */
    size_t end = path ? strlen(path) : 0;
    return length && path && !strncmp(path, root, length) && !(end > 4 && !strcmp(path + end - 4, "-shm"));
}
static const char *name_of(int descriptor) {
    return descriptor >= 0 && descriptor < FILES && names[descriptor][0] ? names[descriptor] : NULL;
}

/* Whether this call is the one that fails; errno is then set. */
static int fails(int call, const char *name) {
    if (calls < (long)sizeof kinds - 1) kinds[calls] = (char)('0' + call), kinds[calls + 1] = 0;
    if (++calls != target) return 0;
    failed_call = call;
    snprintf(failed_name, LONGEST, "%s", name);
    int is_network = call == CONNECT || call == SEND;
    if (kind == NO_SPACE) errno = is_network ? EADDRNOTAVAIL : ENOSPC;
    else if (kind == INTERRUPTED) errno = EINTR;
    else errno = is_network ? ECONNRESET : EIO;
    return 1;
}

static void note(int call, const char *name, const char *other, int64_t offset, const void *data, int64_t length) {
    if (recording < 0) return;
    int64_t header[5] = {call, (int64_t)strlen(name), other ? (int64_t)strlen(other) : 0, offset, length};
    __typeof__(&write) put = REAL(write);
    if (put(recording, header, sizeof header) < 0 || put(recording, name, header[1]) < 0) return;
    if (other && put(recording, other, header[2]) < 0) return;
    if (data && put(recording, data, length) < 0) return;
}

static int opened(int descriptor, const char *path, int flags, int existed) {
    if (descriptor >= 0 && descriptor < FILES) {
        snprintf(names[descriptor], LONGEST, "%s", is_watched(path) ? path : "");
        if (is_watched(path) && (flags & O_CREAT) && !existed) note(CREATE, path, NULL, 0, NULL, 0);
        if (is_watched(path) && (flags & O_TRUNC) && existed) note(TRUNCATE, path, NULL, 0, NULL, 0);
    }
    return descriptor;
}
#define OPEN(name, call)                                                                        \
    {                                                                                           \
        va_list more;                                                                           \
        va_start(more, flags);                                                                  \
        mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) ? va_arg(more, mode_t) : 0;             \
        va_end(more);                                                                           \
        int existed = !REAL(access)(path, F_OK);                                                \
        if (is_watched(path) && (flags & O_CREAT) && !existed && fails(CREATE, path)) return -1; \
        return opened(call, path, flags, existed);                                              \
    }
int open(const char *path, int flags, ...) OPEN(open, REAL(open)(path, flags, mode))
int open64(const char *path, int flags, ...) OPEN(open64, REAL(open64)(path, flags, mode))
int openat(int at, const char *path, int flags, ...) OPEN(openat, REAL(openat)(at, path, flags, mode))
int openat64(int at, const char *path, int flags, ...) OPEN(openat64, REAL(openat64)(at, path, flags, mode))
int close(int descriptor) {
    if (descriptor >= 0 && descriptor < FILES) names[descriptor][0] = 0, sockets[descriptor] = 0;
    return REAL(close)(descriptor);
}

static ssize_t put(int descriptor, const void *data, size_t length, off64_t offset, int is_at) {
    const char *name = name_of(descriptor);
    __typeof__(&pwrite64) put_at = REAL(pwrite64);
    __typeof__(&write) append = REAL(write);
    if (name && fails(WRITE, name)) {
        int reason = errno;
        if (kind == TORN) {
            off64_t place = is_at ? offset : lseek64(descriptor, 0, SEEK_CUR);
            ssize_t half = is_at ? put_at(descriptor, data, length / 2, offset) : append(descriptor, data, length / 2);
            if (half > 0) note(WRITE, name, NULL, place, data, half);
        }
        errno = reason;
        return -1;
    }
    ssize_t done = is_at ? put_at(descriptor, data, length, offset) : append(descriptor, data, length);
    /* After a write, also of a file that is open for appending, the place is where it ended. */
    if (name && done > 0) note(WRITE, name, NULL, is_at ? offset : lseek64(descriptor, 0, SEEK_CUR) - done, data, done);
    return done;
}
ssize_t write(int descriptor, const void *data, size_t length) { return put(descriptor, data, length, 0, 0); }
ssize_t pwrite(int descriptor, const void *data, size_t length, off_t at) { return put(descriptor, data, length, at, 1); }
ssize_t pwrite64(int descriptor, const void *data, size_t length, off64_t at) {
    return put(descriptor, data, length, at, 1);
}

/* A torn call does its work, and says that it failed. */
#define CALL(call, name, other, size, real)                         \
    {                                                               \
        if (name && fails(call, name)) {                            \
            int reason = errno;                                     \
            if (kind == TORN && !(real)) note(call, name, other, size, NULL, 0); \
            errno = reason;                                         \
            return -1;                                              \
        }                                                           \
        int done = real;                                            \
        if (name && !done) note(call, name, other, size, NULL, 0);  \
        return done;                                                \
    }
#define WATCHED(path) (is_watched(path) ? path : NULL)
int ftruncate(int file, off_t size) { const char *name = name_of(file); CALL(TRUNCATE, name, NULL, size, REAL(ftruncate)(file, size)) }
int ftruncate64(int file, off64_t size) { const char *name = name_of(file); CALL(TRUNCATE, name, NULL, size, REAL(ftruncate64)(file, size)) }
int truncate(const char *path, off_t size) { const char *name = WATCHED(path); CALL(TRUNCATE, name, NULL, size, REAL(truncate)(path, size)) }
int truncate64(const char *path, off64_t size) { const char *name = WATCHED(path); CALL(TRUNCATE, name, NULL, size, REAL(truncate64)(path, size)) }
int fsync(int file) { const char *name = name_of(file); CALL(SYNC, name, NULL, 0, REAL(fsync)(file)) }
int fdatasync(int file) { const char *name = name_of(file); CALL(SYNC, name, NULL, 0, REAL(fdatasync)(file)) }
int rename(const char *from, const char *to) { const char *name = WATCHED(from); CALL(RENAME, name, to, 0, REAL(rename)(from, to)) }
int unlink(const char *path) { const char *name = WATCHED(path); CALL(UNLINK, name, NULL, 0, REAL(unlink)(path)) }
int mkdir(const char *path, mode_t mode) {
    /* An attempt at a folder that is there changes nothing. */
    if (!REAL(access)(path, F_OK)) return REAL(mkdir)(path, mode);
    const char *name = WATCHED(path);
    CALL(MKDIR, name, NULL, 0, REAL(mkdir)(path, mode))
}

int connect(int file, const struct sockaddr *address, socklen_t length) {
    const struct sockaddr_in *internet = (const struct sockaddr_in *)address;
    if (port && address->sa_family == AF_INET && ntohs(internet->sin_port) == port) {
        if (file >= 0 && file < FILES) sockets[file] = 1;
        if (fails(CONNECT, "server")) {
            int reason = errno;
            if (kind == TORN) REAL(connect)(file, address, length);
            errno = reason;
            return -1;
        }
    }
    return REAL(connect)(file, address, length);
}
ssize_t send(int file, const void *data, size_t length, int flags) {
    if (file >= 0 && file < FILES && sockets[file] && fails(SEND, "server")) {
        int reason = errno;
        if (kind == TORN) REAL(send)(file, data, length / 2, flags);
        if (kind != INTERRUPTED) REAL(shutdown)(file, SHUT_RDWR);
        errno = reason;
        return -1;
    }
    return REAL(send)(file, data, length, flags);
}
