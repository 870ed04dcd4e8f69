"""Coroutines that are started in the caller's own turn: what does not wait is over at once, the rest is a task's."""

import asyncio

import pytest

from gateway.eager import start_eagerly


def test_what_does_not_wait_is_over_at_once() -> None:
    done: list[str] = []

    async def work() -> None:
        done.append("begun")
        await asyncio.wait_for(nothing(), None)
        done.append("ended")

    async def nothing() -> None:
        """Awaited, and never suspended."""

    async def scenario() -> None:
        assert start_eagerly(work()) is None
        assert done == ["begun", "ended"]

    asyncio.run(scenario())


def test_what_waits_goes_on_in_a_task() -> None:
    async def scenario() -> None:
        events = [asyncio.Event(), asyncio.Event()]
        seen: list[int] = []

        async def work() -> None:
            for number, event in enumerate(events):
                await event.wait()
                await asyncio.sleep(0)  # a bare yield, which names nothing to wait for
                seen.append(number)

        task = start_eagerly(work())
        assert task is not None
        assert not seen
        for event in events:
            event.set()
        await task
        assert seen == [0, 1]

    asyncio.run(scenario())


def test_an_event_that_comes_before_the_task_waits_for_it_is_not_lost() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        task = start_eagerly(event.wait())
        event.set()
        assert task is not None
        await asyncio.wait_for(task, 10)

    asyncio.run(scenario())


def test_errors_are_raised_where_they_happen() -> None:
    async def work(event: asyncio.Event) -> None:
        await event.wait()
        raise KeyError("x")

    async def scenario() -> None:
        event = asyncio.Event()
        task = start_eagerly(work(event))
        assert task is not None
        event.set()
        with pytest.raises(KeyError):
            await task
        with pytest.raises(KeyError):
            start_eagerly(work(event))  # it does not wait any more

    asyncio.run(scenario())


@pytest.mark.parametrize("num_turns", [0, 1, 2])
def test_the_task_can_be_cancelled_whenever_it_waits(num_turns: int) -> None:
    async def scenario() -> None:
        cleaned: list[bool] = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaned.append(True)

        task = start_eagerly(work())
        assert task is not None
        for _ in range(num_turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [True]

    asyncio.run(scenario())
