"""A mean completion time that no schedule can go below."""

from __future__ import annotations

from heapq import heappop, heappush

from paceline.service.simulate.workload import Fleet, Workload


def lowest_mean(workload: Workload, fleet: Fleet) -> float:
    """The larger of two bounds that hold even for schedulers that know the future, interrupt and move tasks.

    No task is completed faster than it runs. And one device as fast as all together could do whatever they do; on
    it, serving what has the least left first has the lowest mean of all.
    """
    return max(float(workload.seconds.mean()), _least_left_first(workload, fleet))


def _least_left_first(workload: Workload, fleet: Fleet) -> float:
    sizes = workload.seconds * workload.device_counts(fleet.devices) / fleet.capacity
    waiting: list[tuple[float, int]] = []  # what is left of each task
    clock = total = 0.0
    coming = 0
    while coming < len(workload) or waiting:
        if not waiting:
            clock = max(clock, float(workload.submitted[coming]))
        until = float(workload.submitted[coming]) if coming < len(workload) else float("inf")
        while waiting and clock < until:
            left, task = heappop(waiting)
            worked = min(left, until - clock)
            clock += worked
            if worked < left:
                heappush(waiting, (left - worked, task))
            else:
                total += clock - float(workload.submitted[task])
        if coming < len(workload) and clock >= until:
            heappush(waiting, (float(sizes[coming]), coming))
            coming += 1
    return total / len(workload)
