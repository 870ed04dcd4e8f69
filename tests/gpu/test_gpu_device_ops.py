"""The way to the device and back, here between two memories of the host's, by the reference kernels."""

import torch
from device_ops import on_device
from kernel_cases import make_rows

from kernels.ops import AttentionBatch, Ops

HERE = torch.device("cpu")


class Seen:
    """Operations that note what tensors they were given."""

    name = "seen"

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def store(self, *tensors: torch.Tensor) -> None:
        self.tensors += tensors


def test_written_memory_comes_back(reference_ops: Ops) -> None:
    ops = on_device(reference_ops, HERE)
    tokens = torch.zeros(3, 4, dtype=torch.int32)
    ops.store_tokens(tokens[1:], torch.tensor([1]), torch.tensor([2]), torch.tensor([7]))
    assert tokens[2, 2] == 7
    assert tokens.sum() == 7


def test_slices_of_one_buffer_stay_that(reference_ops: Ops) -> None:
    seen = Seen()
    ops = on_device(seen, HERE)  # type: ignore[arg-type]
    heads = torch.arange(24.0).view(2, 4, 3)
    q, k, v = torch.split(heads, [2, 1, 1], dim=1)
    ops.store(q, k, v)  # type: ignore[attr-defined]
    there = seen.tensors
    assert len({tensor.untyped_storage().data_ptr() for tensor in there}) == 1
    assert there[0].untyped_storage().data_ptr() != heads.untyped_storage().data_ptr()
    assert [tensor.stride() for tensor in there] == [q.stride(), k.stride(), v.stride()]
    assert all(torch.equal(tensor, mine) for tensor, mine in zip(there, (q, k, v), strict=True))


def test_structures_travel_and_results_are_the_same(reference_ops: Ops) -> None:
    ops = on_device(reference_ops, HERE)
    logits = torch.randn(3, 20)
    tokens = torch.randint(0, 20, (3, 6), dtype=torch.int32)
    requests = [{"temperature": 0.9, "seeds": row, "positions": 4, "bias": {3: 1.0}} for row in range(3)]
    rows = make_rows(requests, 20, num_logprobs=2)
    mine, theirs = ops.sample(logits, tokens, rows), reference_ops.sample(logits, tokens, rows)
    assert torch.equal(mine.token_ids, theirs.token_ids)
    assert mine.logprobs is not None
    assert theirs.logprobs is not None
    assert torch.equal(mine.logprobs.top_logprobs, theirs.logprobs.top_logprobs)
    weight = ops.pack_linear(torch.randn(8, 6))
    x = torch.randn(2, 6)
    assert torch.equal(ops.linear(x, weight), reference_ops.linear(x, weight))
    batch = AttentionBatch(*(torch.zeros(2, dtype=torch.int32) for _ in range(4)))
    assert torch.equal(ops.plan_attention(batch).positions, batch.positions)
    assert ops.name == reference_ops.name
