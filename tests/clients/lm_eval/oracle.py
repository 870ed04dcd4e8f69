"""Log-likelihoods by transformers in float32: what lm-eval's answers must equal. Runs in the main environment.

``oracle.py FOLDER``: pairs of context and continuation as JSON on stdin, ``[sum, is_greedy]`` for each on stdout.
"""

import json
import sys

import torch
import transformers


def main() -> None:
    folder = sys.argv[1]
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for context, continuation in json.load(sys.stdin):
        ids = tokenizer(context + continuation, add_special_tokens=False).input_ids
        num_context = len(tokenizer(context, add_special_tokens=False).input_ids)
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, num_context - 1 : -1].log_softmax(-1)
        targets = torch.tensor(ids[num_context:])
        values = logits.gather(1, targets[:, None])[:, 0]
        found.append([values.sum().item(), bool((logits.argmax(-1) == targets).all())])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
