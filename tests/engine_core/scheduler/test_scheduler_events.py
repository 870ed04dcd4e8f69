"""What the scheduler says of a request beside its tokens, where the oracle's story has one letter for two kinds."""

from core_harness import CoreHarness, Sizes, make_add

from ipc.messages import EventKind, Outputs
from ipc.params import SamplingParams


def events(engine: CoreHarness) -> list[tuple[int, int, int]]:
    """(request, kind, value) of all that is still to come."""
    return [
        (output.request_id, kind, value)
        for _, message in engine.run_until_idle()
        if isinstance(message, Outputs)
        for output in message.outputs
        for kind, _, value in output.events
    ]


def test_a_preemption_says_what_becomes_of_the_blocks() -> None:
    for num_host_blocks, kind, other in (
        (8, EventKind.PREEMPTED_BY_SWAP, EventKind.PREEMPTED),
        (0, EventKind.PREEMPTED, EventKind.PREEMPTED_BY_SWAP),
    ):
        engine = CoreHarness(Sizes(num_blocks=4, max_num_seqs=2, overlap=False, num_host_blocks=num_host_blocks))
        engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=12)))
        engine.add(make_add(2, [1, 2, 4], SamplingParams(max_tokens=12)))
        found = events(engine)
        assert (2, kind, 1) in found
        assert other not in {event for _, event, _ in found}


def test_every_choice_says_that_its_grammar_is_ready() -> None:
    engine = CoreHarness(Sizes())
    engine.grammars.is_slow = True
    engine.add(make_add(1, [1, 2, 3], SamplingParams(max_tokens=4), n=2, grammar=""))
    engine.step()
    engine.grammars.finish()
    kinds = [kind for _, kind, _ in events(engine)]
    assert kinds.count(EventKind.GRAMMAR_READY) == 2
    ready = kinds.index(EventKind.GRAMMAR_READY)
    assert kinds.index(EventKind.BLOCKED) < ready < kinds.index(EventKind.ADMITTED)
