"""What fills the device's memory: it needs the device for itself."""

import pytest
import torch
from gpu_engine import make_prompt
from gpu_requests import GREEDY, MakeDriver, assert_complete, make_requests, run_all


def test_the_rest_of_the_memory_is_for_the_cache(device: str, make_driver: MakeDriver, name: str) -> None:
    """As much as is asked for, and what runs then fits into what is left."""
    if device == "cpu":
        pytest.skip("the CPU's memory is shared out in another way")
    before, _ = torch.cuda.mem_get_info()
    driver = make_driver(num_kv_blocks=None, gpu_memory_utilization=0.5, max_num_seqs=1024, max_model_len=8192)
    requests = make_requests(name)
    assert_complete(run_all(driver, requests), requests)
    after, _ = torch.cuda.mem_get_info()
    assert 0.4 * before < after < 0.6 * before


def test_a_step_that_is_too_large_for_the_memory_is_cut(device: str, make_driver: MakeDriver, name: str) -> None:
    """All the memory but a little is taken by somebody else: then steps are cut, or requests fail, one by one; and when
    there is memory again all is as before."""
    if device == "cpu":
        pytest.skip("the CPU's memory has no such end")
    settings = {"batch_invariant": True, "max_num_batched_tokens": 8192, "num_kv_blocks": 4000, "enforce_eager": True}
    driver = make_driver(**settings)
    requests = {index: (make_prompt(index, 300, 49152), GREEDY) for index in range(32)}
    expected = run_all(driver, requests)
    assert_complete(expected, requests)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    filler = torch.empty(free - (192 << 20), dtype=torch.uint8, device="cuda")
    found = run_all(driver, requests)
    assert found.keys() == requests.keys()
    done = [request_id for request_id, result in found.items() if result.failure is None and result.finish is not None]
    assert all(found[request_id] == expected[request_id] for request_id in done if found[request_id].token_ids)
    del filler
    assert run_all(driver, requests) == expected
