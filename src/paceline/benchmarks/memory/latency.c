/* A chain of pointers through memory in random order: each load must wait for the one before it. */
#define _GNU_SOURCE
#include <stddef.h>
#include <stdint.h>
#include <time.h>

static uint64_t next_random(uint64_t *state)
{
    uint64_t mixed = (*state += 0x9e3779b97f4a7c15u); /* splitmix64 */
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
    return mixed ^ (mixed >> 31);
}

static void **line(char *base, size_t stride, size_t index)
{
    return (void **)(base + index * stride);
}

/* Link `lines` lines, `stride` bytes apart, into one cycle in random order (Sattolo's shuffle). */
void chain_build(char *base, size_t lines, size_t stride, uint64_t seed)
{
    for (size_t i = 0; i < lines; i++)
        *line(base, stride, i) = line(base, stride, i);
    for (size_t i = lines - 1; i > 0; i--) {
        size_t other = next_random(&seed) % i;
        void *kept = *line(base, stride, i);
        *line(base, stride, i) = *line(base, stride, other);
        *line(base, stride, other) = kept;
    }
}

/* Follow the chain for `turns` times 16 loads from `from`: where it ends, and the seconds it took. */
void *chain_follow(void *from, size_t turns, double *seconds)
{
    struct timespec begun, ended;
    void *volatile *at = from;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (size_t turn = 0; turn < turns; turn++) {
        at = *at, at = *at, at = *at, at = *at;
        at = *at, at = *at, at = *at, at = *at;
        at = *at, at = *at, at = *at, at = *at;
        at = *at, at = *at, at = *at, at = *at;
    }
    /* The clock must not be read before the last load has brought its value. */
    __asm__ volatile("" ::"r"(at) : "memory");
    clock_gettime(CLOCK_MONOTONIC, &ended);
    *seconds = (double)(ended.tv_sec - begun.tv_sec) + 1e-9 * (double)(ended.tv_nsec - begun.tv_nsec);
    return (void *)at;
}

/* How many lines the cycle from the first line passes; 0 where it leaves the memory or never comes back. */
size_t chain_length(char *base, size_t lines, size_t stride)
{
    char *at = base;
    for (size_t count = 1; count <= lines; count++) {
        at = *(void **)at;
        if (at < base || at >= base + lines * stride || (size_t)(at - base) % stride != 0)
            return 0;
        if (at == base)
            return count;
    }
    return 0;
}
