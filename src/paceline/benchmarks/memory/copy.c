/* Copies from one part of host memory to another, many times, so that a short copy can be timed. */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <time.h>

/* Seconds of `passes` copies, one after another. */
double copy_repeatedly(void *to, const void *from, size_t bytes, size_t passes)
{
    struct timespec begun, ended;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (size_t pass = 0; pass < passes; pass++) {
        memcpy(to, from, bytes);
        /* The next copy does the same work: without this the compiler might see that once is enough. */
        __asm__ volatile("" ::"r"(to), "r"(from) : "memory");
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    return (double)(ended.tv_sec - begun.tv_sec) + 1e-9 * (double)(ended.tv_nsec - begun.tv_nsec);
}
