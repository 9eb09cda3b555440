/* Four vector kernels in double precision, each thread pinned to one cpu and working on its own part of the arrays.
 *
 * Every call starts its threads, lets them work and joins them; starting is in no sample. Within a repetition all
 * threads leave a barrier together, and the time counts from the first that starts to the last that ends.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

/* After CHECK the mixes: only what is read is written, so that no cache reads more than the program does; save WRITES. */
enum { FILL, COPY, SCALE, ADD, TRIAD, CHECK, READS, THREE_TO_ONE, TWO_TO_ONE, ONE_TO_ONE, WRITES };

#define FACTOR 3.0
#define SPINS 2000          /* then give the cpu away: somebody else may need it to arrive */
#define LINE_DOUBLES 8      /* parts begin at whole cache lines */
#define NOTHING SIZE_MAX
#define STACK_BYTES (1 << 20) /* the usual 8 MiB for each of hundreds of threads may pass a limit on memory */

struct task {
    double *a, *b, *c;
    size_t elements;
    int work;       /* one of the kernels, FILL or CHECK */
    int done_until; /* CHECK: the last kernel that has run */
    size_t passes;  /* over the arrays in each repetition */
    size_t repetitions;
};

struct worker {
    pthread_t thread;
    struct team *team;
    size_t low, high;
    int64_t begun, ended;
    size_t wrong, first_wrong;
};

struct team {
    const struct task *task;
    struct worker *workers;
    double *seconds;
    size_t size;
    atomic_int gate; /* 0: wait; 1: work; -1: not everybody could be started, go home */
    atomic_size_t arrived;
    atomic_uint round;
};

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void meet(struct team *team)
{
    unsigned round = atomic_load(&team->round);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == team->size) {
        atomic_store(&team->arrived, 0);
        atomic_fetch_add(&team->round, 1);
        return;
    }
    for (unsigned spins = 0; atomic_load(&team->round) == round; spins++)
        if (spins > SPINS)
            sched_yield();
}

__attribute__((noinline)) static void copy(double *restrict to, const double *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = from[i];
}

__attribute__((noinline)) static void scale(double *restrict to, const double *restrict from, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = FACTOR * from[i];
}

__attribute__((noinline)) static void add(double *restrict to, const double *restrict x, const double *restrict y,
                                          size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = x[i] + y[i];
}

__attribute__((noinline)) static void triad(double *restrict to, const double *restrict x, const double *restrict y,
                                            size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = x[i] + FACTOR * y[i];
}

/* Words rather than numbers: their sums wrap around and are exact, in whichever order. */
__attribute__((noinline)) static uint64_t reads(const uint64_t *from, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += from[i];
    return sum;
}

__attribute__((noinline)) static void three_to_one(uint64_t *restrict to, const uint64_t *restrict x,
                                                   const uint64_t *restrict y, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += x[i] + y[i];
}

__attribute__((noinline)) static void two_to_one(uint64_t *restrict to, const uint64_t *restrict x, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += x[i];
}

__attribute__((noinline)) static void one_to_one(uint64_t *to, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] += 1;
}

__attribute__((noinline)) static void writes(uint64_t *to, uint64_t value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = value;
}

static uint64_t one_pass(const struct task *task, size_t low, size_t count)
{
    uint64_t sum = 0;
    double *a = task->a + low, *b = task->b + low, *c = task->c + low;
    switch (task->work) {
    case COPY:
        copy(c, a, count);
        break;
    case SCALE:
        scale(b, c, count);
        break;
    case ADD:
        add(c, a, b, count);
        break;
    case TRIAD:
        triad(a, b, c, count);
        break;
    case READS:
        sum = reads((uint64_t *)a, count);
        break;
    case THREE_TO_ONE:
        three_to_one((uint64_t *)c, (uint64_t *)a, (uint64_t *)b, count);
        break;
    case TWO_TO_ONE:
        two_to_one((uint64_t *)c, (uint64_t *)a, count);
        break;
    case ONE_TO_ONE:
        one_to_one((uint64_t *)c, count);
        break;
    case WRITES:
        writes((uint64_t *)c, 0x0123456789abcdefu, count);
        break;
    }
    /* The next pass does the same work: without this the compiler might see that once is enough. */
    __asm__ volatile("" ::"r"(sum) : "memory");
    return sum;
}

/* Whole numbers far below 2^53, different from element to element, so that all four kernels are exact. */
static double start_value(size_t index)
{
    return 1.0 + (double)(index % 1021);
}

static void fill(const struct task *task, struct worker *worker)
{
    for (size_t i = worker->low; i < worker->high; i++) {
        task->a[i] = start_value(i);
        task->b[i] = -1.0;
        task->c[i] = -2.0;
    }
}

static void check(const struct task *task, struct worker *worker)
{
    int done = task->done_until;
    for (size_t i = worker->low; i < worker->high; i++) {
        double start = start_value(i);
        double a = done >= TRIAD ? 15.0 * start : start;
        double b = done >= SCALE ? 3.0 * start : -1.0;
        double c = done >= ADD ? 4.0 * start : done >= COPY ? start : -2.0;
        if (task->a[i] != a || task->b[i] != b || task->c[i] != c) {
            if (worker->wrong == 0)
                worker->first_wrong = i;
            worker->wrong++;
        }
    }
}

static void repeat(struct team *team, struct worker *worker)
{
    const struct task *task = team->task;
    size_t count = worker->high - worker->low;
    uint64_t sum = 0;
    if (task->passes > 1) /* short enough for caches to matter, which a new thread may have to fill */
        one_pass(task, worker->low, count);
    for (size_t repetition = 0; repetition < task->repetitions; repetition++) {
        meet(team);
        worker->begun = now();
        for (size_t pass = 0; pass < task->passes; pass++)
            sum = one_pass(task, worker->low, count);
        worker->ended = now();
        meet(team);
        if (worker == team->workers) {
            int64_t first = worker->begun, last = worker->ended;
            for (size_t i = 1; i < team->size; i++) {
                if (team->workers[i].begun < first)
                    first = team->workers[i].begun;
                if (team->workers[i].ended > last)
                    last = team->workers[i].ended;
            }
            team->seconds[repetition] = (double)(last - first) * 1e-9;
        }
        meet(team);
    }
    if (task->work == READS && count > 0) /* nothing was written: this shows that everything was read */
        ((uint64_t *)task->c)[worker->low] = sum;
}

static void *work(void *argument)
{
    struct worker *worker = argument;
    struct team *team = worker->team;
    int gate;
    while ((gate = atomic_load(&team->gate)) == 0)
        sched_yield();
    if (gate < 0)
        return NULL;
    switch (team->task->work) {
    case FILL:
        fill(team->task, worker);
        break;
    case CHECK:
        check(team->task, worker);
        break;
    default:
        repeat(team, worker);
    }
    return NULL;
}

static int start(struct worker *worker, int cpu)
{
    size_t bytes = CPU_ALLOC_SIZE((size_t)cpu + 1);
    cpu_set_t *set = CPU_ALLOC((size_t)cpu + 1);
    if (set == NULL)
        return ENOMEM;
    CPU_ZERO_S(bytes, set);
    CPU_SET_S((size_t)cpu, bytes, set);
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error == 0) {
        error = pthread_attr_setaffinity_np(&attributes, bytes, set);
        if (error == 0)
            error = pthread_attr_setstacksize(&attributes, STACK_BYTES);
        if (error == 0)
            error = pthread_create(&worker->thread, &attributes, work, worker);
        pthread_attr_destroy(&attributes);
    }
    CPU_FREE(set);
    return error;
}

/* Let one thread on each of the cpus do its part of the task; 0, or the error that kept a thread from starting. */
static int together(const struct task *task, const int *cpus, size_t threads, double *seconds, size_t *wrong,
                    size_t *first_wrong)
{
    struct team team = {.task = task, .seconds = seconds, .size = threads};
    team.workers = calloc(threads, sizeof *team.workers);
    if (team.workers == NULL)
        return ENOMEM;
    size_t lines = task->elements / LINE_DOUBLES, started = 0;
    int error = 0;
    for (; started < threads && error == 0; started += error == 0) {
        struct worker *worker = &team.workers[started];
        worker->team = &team;
        worker->low = lines * started / threads * LINE_DOUBLES;
        worker->high = started + 1 == threads ? task->elements : lines * (started + 1) / threads * LINE_DOUBLES;
        error = start(worker, cpus[started]);
    }
    atomic_store(&team.gate, error == 0 ? 1 : -1);
    *wrong = 0;
    *first_wrong = NOTHING;
    for (size_t i = 0; i < started; i++) {
        pthread_join(team.workers[i].thread, NULL);
        if (team.workers[i].wrong > 0 && *wrong == 0)
            *first_wrong = team.workers[i].first_wrong;
        *wrong += team.workers[i].wrong;
    }
    free(team.workers);
    return error;
}

/* Give every element its first value; each page comes to lie near the thread that will work on it. */
int stream_fill(double *a, double *b, double *c, size_t elements, const int *cpus, size_t threads)
{
    struct task task = {.a = a, .b = b, .c = c, .elements = elements, .work = FILL};
    size_t wrong, first_wrong;
    return together(&task, cpus, threads, NULL, &wrong, &first_wrong);
}

/* Run one kernel; `seconds` takes the time of each repetition. */
int stream_run(double *a, double *b, double *c, size_t elements, const int *cpus, size_t threads, int kernel,
               size_t passes, size_t repetitions, double *seconds)
{
    struct task task = {
        .a = a, .b = b, .c = c, .elements = elements, .work = kernel, .passes = passes, .repetitions = repetitions};
    size_t wrong, first_wrong;
    return together(&task, cpus, threads, seconds, &wrong, &first_wrong);
}

/* Count elements that are not what the kernels up to `done_until`, in order, must have made of them. */
int stream_check(double *a, double *b, double *c, size_t elements, const int *cpus, size_t threads, int done_until,
                 size_t *wrong, size_t *first_wrong)
{
    struct task task = {.a = a, .b = b, .c = c, .elements = elements, .work = CHECK, .done_until = done_until};
    return together(&task, cpus, threads, NULL, wrong, first_wrong);
}
