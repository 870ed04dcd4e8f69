"""The same models in transformers: what is compared with, in tokens and in speed."""

import time
from typing import Any

import torch
from gpu_clock import synchronize
from gpu_models import CONFIGS
from torch import Tensor

from engine_core.models.dummy import DummyWeights


def make_transformers_model(name: str, device: str, dtype: torch.dtype) -> Any:
    """With the weights that an engine of seed 0 makes up on that device, in eval mode."""
    import transformers

    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            config = transformers.LlamaConfig(**CONFIGS[name], attn_implementation="sdpa")
            model = transformers.LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    for parameter_name, parameter in model.named_parameters():
        DummyWeights(0).fill(parameter_name, parameter.data)
    return model.eval()


def generate_rate(model: Any, prompts: list[list[int]], num_tokens: int, device: str) -> float:
    """Output tokens a second of greedy ``generate`` for these prompts at once; they are equally long."""
    ids = torch.tensor(prompts, device=device)
    options = {"do_sample": False, "min_new_tokens": num_tokens, "max_new_tokens": num_tokens, "pad_token_id": 0}
    with torch.inference_mode():
        model.generate(
            ids, attention_mask=torch.ones_like(ids), **(options | {"max_new_tokens": 2, "min_new_tokens": 2})
        )
        synchronize(device)
        started = time.perf_counter()
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        synchronize(device)
    seconds = time.perf_counter() - started
    return (found.shape[1] - ids.shape[1]) * len(prompts) / seconds


def next_token_logprobs(model: Any, token_ids: list[int], device: str) -> Tensor:
    """f32 [len(token_ids), vocabulary], on the host: after each token, of the next."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids], device=device)).logits[0].float().log_softmax(-1).cpu()
