"""The waiting set of every policy, in any sequence of operations, against a sorted list."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_cases import make_sequence

from engine_core import registry
from engine_core.scheduler.policy import Policy
from engine_core.sequence import Sequence


def by_arrival(seq: Sequence) -> tuple[int, ...]:
    return (seq.request.arrival_ns, seq.request.request_id, seq.choice)


# Nothing was learned: all sequences have the same work, no deadline and one tenant.
ORDERS: dict[str, Callable[[Sequence], tuple[int, ...]]] = {
    "deadline": by_arrival,
    "fair": by_arrival,
    "fcfs": by_arrival,
    "long_first": by_arrival,
    "priority": lambda seq: (seq.request.priority, *by_arrival(seq)),
    "short_first": by_arrival,
}
every_policy = pytest.mark.parametrize("name", registry.names("policy"))
operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "remove", "pop", "requeue"]), st.integers(0, 11)), max_size=60
)


def make_sequences() -> list[Sequence]:
    """Twelve, with equal arrivals and priorities among them, and two choices of equal requests."""
    return [
        make_sequence(index // 2, arrival_ns=index % 5, priority=index % 3 - 1, choice=index % 2) for index in range(12)
    ]


def make_policy(name: str) -> Policy:
    policy: Policy = registry.load("policy", name)()
    return policy


def test_every_policy_has_an_order_here() -> None:
    assert set(registry.names("policy")) == set(ORDERS)


@every_policy
@given(operations=operations)
@settings(derandomize=True, deadline=None, max_examples=100)
def test_any_sequence_of_operations_is_that_of_a_sorted_list(name: str, operations: list[tuple[str, int]]) -> None:
    policy, sequences, model = make_policy(name), make_sequences(), list[Sequence]()
    for operation, index in operations:
        seq = sequences[index]
        if operation == "pop":
            if model:
                assert policy.pop() is model.pop(0)
            else:
                with pytest.raises(IndexError):
                    policy.pop()
        elif operation == "remove":
            if seq in model:
                policy.remove(seq)
                model.remove(seq)
            else:
                with pytest.raises(KeyError):
                    policy.remove(seq)
        elif seq not in model:
            (policy.requeue if operation == "requeue" else policy.add)(seq)
            model.append(seq)
        else:
            with pytest.raises(ValueError, match="already waits"):
                policy.add(seq)
        model.sort(key=ORDERS[name])
        assert policy.peek() is (model[0] if model else None)
        assert len(policy) == len(model)
        assert set(policy) == set(model)


@every_policy
def test_the_victim_is_who_would_be_admitted_last(name: str) -> None:
    policy, sequences = make_policy(name), make_sequences()
    for seq in sequences:
        policy.add(seq)
    for _ in sequences:
        policy.pop()
    while sequences:
        victim = policy.victim(sequences)
        assert victim is max(sequences, key=ORDERS[name])
        sequences.remove(victim)


@every_policy
def test_a_preempted_sequence_is_admitted_before_who_came_later(name: str) -> None:
    policy = make_policy(name)
    first, second, third = (make_sequence(index, arrival_ns=index) for index in range(3))
    for seq in (third, first, second):
        policy.add(seq)
    assert policy.pop() is first
    policy.requeue(first)
    assert [policy.pop() for _ in range(3)] == [first, second, third]


@every_policy
def test_removed_sequences_do_not_pile_up(name: str) -> None:
    """Whoever waits at the end is removed and comes again, many times: memory stays that of who waits."""
    policy = make_policy(name)
    first = make_sequence(0, arrival_ns=0)
    policy.add(first)
    later = [make_sequence(1 + index, arrival_ns=9) for index in range(10)]
    for _ in range(200):
        for seq in later:
            policy.add(seq)
        for seq in later:
            policy.remove(seq)
    heap = {
        "fair": lambda: next(iter(policy._tenants)).waiting,  # type: ignore[attr-defined]
        "deadline": lambda: policy._patient,  # type: ignore[attr-defined]
    }.get(name, lambda: policy._waiting)()  # type: ignore[attr-defined]
    assert heap.num_entries <= 100
    assert policy.pop() is first
    assert policy.peek() is None
