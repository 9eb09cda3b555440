"""The bandwidth that `stream` reports is that of a plain C program, built here and run turn by turn with it.

On a quiet machine the two are within a few percent, as the printed ratio tells. What is asserted holds on a machine
with busy neighbours too: a wrong count of bytes or threads is off by a third or more.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from statistics import median

import pytest

from paceline.benchmarks.memory import host
from paceline.benchmarks.memory.stream import Stream, StreamParameters
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import MissingDependency
from paceline.core.record import Measurement
from paceline.measure import native

pytestmark = pytest.mark.alone

TURNS = 5
REPETITIONS = 9
# Threads, barriers and a loop as anybody would write them, without a line of what is measured against it.
PROGRAM = r"""
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

struct part { pthread_t id; int cpu; long low, high; };

static double *a, *b, *c, *times;
static long repetitions;
static pthread_barrier_t barrier;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *fill(void *argument)
{
    struct part *part = argument;
    for (long i = part->low; i < part->high; i++)
        a[i] = 1.0, b[i] = 2.0, c[i] = 0.5;
    return NULL;
}

static void *triad(void *argument)
{
    struct part *part = argument;
    for (long r = 0; r < repetitions; r++) {
        pthread_barrier_wait(&barrier);
        double begun = seconds();
        for (long i = part->low; i < part->high; i++)
            a[i] = b[i] + 3.0 * c[i];
        pthread_barrier_wait(&barrier);
        if (part->low == 0)
            times[r] = seconds() - begun;
    }
    return NULL;
}

static void all(struct part *parts, int threads, void *(*work)(void *))
{
    for (int t = 0; t < threads; t++) {
        cpu_set_t set;
        pthread_attr_t attributes;
        CPU_ZERO(&set);
        CPU_SET(parts[t].cpu, &set);
        pthread_attr_init(&attributes);
        pthread_attr_setaffinity_np(&attributes, sizeof set, &set);
        if (pthread_create(&parts[t].id, &attributes, work, &parts[t]))
            abort();
        pthread_attr_destroy(&attributes);
    }
    for (int t = 0; t < threads; t++)
        pthread_join(parts[t].id, NULL);
}

int run(long n, int threads, const int *cpus, long count, double *out)
{
    struct part parts[threads];
    for (int t = 0; t < threads; t++)
        parts[t] = (struct part){.cpu = cpus[t], .low = n * t / threads, .high = n * (t + 1) / threads};
    if (!a) {
        a = malloc(n * 8), b = malloc(n * 8), c = malloc(n * 8);
        all(parts, threads, fill);
    }
    times = out;
    repetitions = count;
    pthread_barrier_init(&barrier, NULL, threads);
    all(parts, threads, triad);
    pthread_barrier_destroy(&barrier);
    return a[n / 2] == 3.5;
}
"""


class Reference:
    """The program, loaded."""

    def __init__(self, folder: Path, size: int, cpus: list[int]) -> None:
        try:
            compiler = native.compiler()
        except MissingDependency as error:
            pytest.skip(str(error))
        source, built = folder / "triad.c", folder / "triad.so"
        source.write_text(PROGRAM)
        flags = ["-O3", "-march=native", "-shared", "-fPIC", "-pthread"]
        subprocess.run([*compiler, *flags, str(source), "-o", str(built)], check=True)
        self._library = ctypes.CDLL(str(built))
        self._elements = ctypes.c_long(size // 8)
        self._cpus = (ctypes.c_int * len(cpus))(*cpus)

    def seconds(self) -> float:
        """The median of some passes of triad."""
        times = (ctypes.c_double * REPETITIONS)()
        count = ctypes.c_long(REPETITIONS)
        assert self._library.run(self._elements, len(self._cpus), self._cpus, count, times), "wrong results"
        return median(times)


def measured(size: int, threads: int) -> dict[str, Measurement]:
    """What the benchmark yields."""
    parameters = StreamParameters(size=size, threads=threads, engine="native", steps=REPETITIONS, warm_up=0.01)
    case = Case(index=0, benchmark="stream", parameters=parameters.model_dump(mode="json"), title="")
    return {m.metric.name: m for m in Stream().measure(parameters, Context(case=case)).measurements}


@pytest.mark.long
def test_triad_agrees_with_a_compiled_program_turn_by_turn(tmp_path: Path) -> None:
    cpus = host.usable_cpus().choose(None)
    size = min(2 * (host.cache_of(cpus) or host.UNKNOWN_CACHE), host.free_memory() // 16) // 4096 * 4096
    reference = Reference(tmp_path, size, cpus)
    reference.seconds(), measured(size, len(cpus))  # builds, and warms up
    ratios = []
    for _ in range(TURNS):
        figures = measured(size, len(cpus))
        assert figures["triad_bandwidth"].value == pytest.approx(3 * size / figures["triad_time"].summary.mean)
        # Triad was the last to be measured, so that both see the same disturbances of the machine.
        ratios.append(reference.seconds() / figures["triad_time"].value)
    print(f"\n{len(cpus)} threads, {size} bytes: {median(ratios):.3f} of the reference; turns {sorted(ratios)}")
    assert 0.75 <= median(ratios) <= 1.33
