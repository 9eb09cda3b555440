"""Which pace of a device was measured: decided by how long it was under load, and by its own counters."""

from __future__ import annotations

import pytest

from paceline.benchmarks._micro.parameters import TIME, MicroParameters
from paceline.benchmarks._micro.session import MicroSession
from paceline.core.benchmark import Context
from paceline.core.case import Case
from paceline.core.errors import Unsupported
from paceline.core.subject import Pace
from paceline.devices import kind_named
from paceline.devices.base import DeviceConditions
from paceline.devices.timeline import Timeline, TimelineEvent
from paceline.machine.conditions import Conditions
from paceline.measure.pace import LONGEST_BURST, Burst, lasting_pace
from support.scripted import ScriptedClock, ScriptedDevice

CUDA, CPU = kind_named("cuda"), kind_named("cpu")


def looked(clock: float, held_down: float | None = None) -> Conditions:
    """One look at a GPU, whose counter of its power limit stands here; None counts nothing."""
    counters = {} if held_down is None else {"sw-power-cap": held_down}
    return Conditions(target="cuda:0", clock=clock, gpus=[DeviceConditions(held_down_seconds=counters)])


@pytest.mark.parametrize(
    ("load_before", "measured", "kind"),
    [
        (2.5, 0.5, "sustained"),
        (2.4, 0.5, "short"),
        (2.4, 2.0, "sustained"),  # a twentieth of the samples came before two and a half seconds of load
        (0.0, 20.0, "short"),
        (0.0, 25.0, "sustained"),
    ],
)
def test_without_counters_the_time_under_load_decides(load_before: float, measured: float, kind: str) -> None:
    pace = lasting_pace(CUDA, load_before, measured, looked(0), looked(30))
    assert (pace.kind, pace.load_before, pace.measured, pace.power_limited) == (kind, load_before, measured, None)


@pytest.mark.parametrize(
    ("held_down", "kind"), [(0.0, "short"), (0.4, "short"), (0.6, "sustained"), (1.0, "sustained")]
)
def test_a_device_at_its_power_limit_most_of_the_time_runs_above_nothing(held_down: float, kind: str) -> None:
    pace = lasting_pace(CUDA, 0.5, 0.5, looked(10, 100.0), looked(11, 100.0 + held_down))
    assert pace.kind == kind
    assert pace.power_limited == pytest.approx(held_down)


def test_a_processors_turbo_lasts_longer_than_a_gpus() -> None:
    looks = (Conditions(target="cpu", clock=0), Conditions(target="cpu", clock=60))
    assert lasting_pace(CPU, 10.0, 10.0, *looks).kind == "short"
    assert lasting_pace(CPU, 30.0, 10.0, *looks).kind == "sustained"


def test_a_burst_is_filled_with_blocks_and_rests_ten_times_as_long() -> None:
    assert Burst.of(1e-3, CUDA) == Burst(leading=2, timed=5, seconds=1e-3, rest=0.1)
    assert Burst.of(0.02, CUDA) == Burst(leading=1, timed=1, seconds=0.02, rest=pytest.approx(0.4))
    assert Burst.of(1e-3, CUDA).timed_share == pytest.approx(0.005 / 0.107)


def test_a_call_that_is_longer_than_a_burst_says_what_to_choose() -> None:
    Burst.of(LONGEST_BURST, CUDA)
    with pytest.raises(Unsupported, match=r"one call takes 60 ms on this GPU, but .* 50 ms: choose a smaller size"):
        Burst.of(0.06, CUDA)


def test_the_power_limit_is_counted_over_the_load_and_not_over_the_rests() -> None:
    pace = Burst(leading=2, timed=5, seconds=1e-3, rest=0.063).pace(CUDA, looked(0, 0.0), looked(7, 0.07))
    assert pace.kind == "burst"
    assert pace.power_limited == pytest.approx(0.1)  # 70 ms of 700 under load


class LimitedDevice(ScriptedDevice):
    """A GPU that takes 15 % longer for everything once it has been under load for 50 ms without a rest."""

    def __init__(self) -> None:
        super().__init__(ScriptedClock())
        self.kind = CUDA
        self._heat = 0.0

    def issue(self, seconds: float) -> None:
        idle = max(0.0, self.clock.now - self.busy_until)
        self._heat = max(0.0, self._heat - idle)
        took = seconds * (1.15 if self._heat > 0.05 else 1.0)
        self._heat += took
        super().issue(took)

    def event(self) -> TimelineEvent:
        return self.new_event()

    def timeline(self, in_flight: int) -> Timeline:
        return self.event_timeline(in_flight)

    def rest(self, seconds: float) -> None:
        self.synchronize()
        self.clock.advance(seconds)


class Limited:
    """A session with such a device, and a call that takes it 2 ms."""

    def __init__(self, **parameters: float) -> None:
        self._device = LimitedDevice()
        context = Context(case=Case(index=0, benchmark="x", parameters={}, title=""))
        self.session = MicroSession(MicroParameters.read(parameters), context, self._device)

    def call(self) -> None:
        self._device.issue(2e-3)


def test_bursts_show_what_a_lasting_load_does_not() -> None:
    """The same device, the same call: 15 % apart."""
    lasting, bursts = Limited(warm_up=3.0, budget=3.0), Limited(budget=3.0)
    with lasting.session as session:
        slower = session.time(lasting.call, TIME)
    with bursts.session as session:
        faster = session.time_bursts(bursts.call, TIME, work=1.0, rate_unit="FLOP/s")
    assert slower.time.value == pytest.approx(2.3e-3)
    assert faster.time.value == pytest.approx(2.0e-3)
    assert session.pace(faster).kind == "burst"
    assert "device events, each sample a burst after a rest of 0.1 s" in faster.timing


def test_a_point_counts_the_load_of_those_before_it() -> None:
    limited = Limited(warm_up=1.0, budget=1.5)
    with limited.session as session:
        first, second = (session.time(limited.call, TIME) for _ in range(2))
    assert second.load_before == pytest.approx(first.load_before + first.load + second.warm.seconds)
    assert session.pace(first).kind == "short"


@pytest.mark.parametrize(
    ("pace", "reason"),
    [
        (
            Pace(kind="sustained", load_before=2.5, measured=2.0, boost=2.0, power_limited=0.97),
            "2.5 s under load before and 2 s while measured; its power limit held the device down for 97 % of the time",
        ),
        (
            Pace(kind="short", load_before=0.5, measured=0.6, boost=28.0),
            "500 ms under load before and 600 ms while measured: a device of this kind may run faster than it can "
            "sustain for 28 s",
        ),
        (
            Pace(kind="burst", load_before=2e-3, measured=5e-3, boost=2.0, rest=0.1),
            "each burst of 5 ms began after 100 ms of rest and 2 ms of lead-in",
        ),
    ],
)
def test_why_it_is_of_its_kind(pace: Pace, reason: str) -> None:
    assert pace.reason == reason
