"""The runner's patience."""

import threading

import pytest

from mirrorlake import runner
from mirrorlake.config import parse
from mirrorlake.errors import AccessRefused, ClusterUnreachable, MirrorlakeError
from mirrorlake.runner import Episodes, Restarts, Run

CONFIG = """
clusters: {a: {bootstrap_servers: "a:1"}, b: {bootstrap_servers: "b:1"}}
flows: {f: {source: a, topics: [t], targets: [{cluster: b}]}}
"""


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def seen(episodes: Episodes, clock: Clock, times: list[float]) -> list[bool]:
    answers = []
    for clock.at in times:
        answers.append(episodes.lasting("t"))
    return answers


def test_what_goes_on_for_too_long_is_lasting() -> None:
    clock = Clock()
    assert seen(Episodes(60, clock), clock, [0, 20, 40, 60, 61]) == [False, False, False, False, True]


def test_after_a_quiet_time_it_begins_anew() -> None:
    clock = Clock()
    assert seen(Episodes(60, clock), clock, [0, 25, 55, 61, 62]) == [False, False, False, False, False]


def test_each_thing_has_its_own_time() -> None:
    clock = Clock()
    episodes = Episodes(10, clock)
    seen(episodes, clock, [0, 4, 8])
    assert not episodes.lasting("other")
    clock.at = 11
    assert episodes.lasting("t")
    assert not episodes.lasting("other")


def test_a_few_restarts_within_a_time_are_allowed() -> None:
    clock = Clock()
    restarts = Restarts(2, 100, clock)
    assert [restarts.allowed("t") for _ in range(3)] == [True, True, False]
    clock.at = 101
    assert restarts.allowed("t")


# --- at the start ---


class Source:
    """Fails some times, then tells its topics."""

    def __init__(self, *faults: MirrorlakeError) -> None:
        self.faults = list(faults)

    def __call__(self) -> list[str]:
        if self.faults:
            raise self.faults.pop(0)
        return ["orders"]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def starting(said: list[str]) -> Run:
    return Run(parse(CONFIG, "here"), say=said.append)


def test_a_start_waits_for_what_passes_by_itself_and_says_so(starting: Run, said: list[str]) -> None:
    assert starting._patiently(Source(ClusterUnreachable("no controller"))) == ["orders"]
    assert said == ["waiting: no controller"]


@pytest.mark.parametrize("fault", [AccessRefused("wrong password"), ClusterUnreachable("never there")])
def test_a_start_ends_for_what_does_not_pass(
    starting: Run, fault: MirrorlakeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "PATIENCE_SECONDS", 0.0)
    with pytest.raises(type(fault), match=fault.what):
        starting._patiently(Source(*[fault] * 3))


def test_somebody_who_stops_a_start_that_waits_does_not_wait_for_it(starting: Run) -> None:
    threading.Timer(0.1, starting.stopping.set).start()
    with pytest.raises(ClusterUnreachable):
        starting._patiently(Source(*[ClusterUnreachable("away")] * 100))
