"""The runner's patience."""

from mirrorlake.runner import Episodes, Restarts


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
