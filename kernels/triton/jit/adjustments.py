"""What happens to rows' logits before temperature: penalties, bias and masks, in a copy of those rows (design 7.4).

A logit of −inf stays that, so masks may come before what is added. One kernel begins where the one before has ended.
"""

import triton
import triton.language as tl

NEGATIVE_INFINITY: tl.constexpr = tl.constexpr(float("-inf"))
IN_PROMPT: tl.constexpr = tl.constexpr(1 << 30)  # beside the number of times that an id is in the output
BLOCK: tl.constexpr = tl.constexpr(256)  # of lists


@triton.jit
def load_logits(logits, logits_stride, adjusted, is_adjusted, row, ids, num_ids, HAS_ADJUSTED: tl.constexpr):
    """The row's logits of ``ids``, adjusted or raw; −inf for NaN, and where there is no token."""
    is_token = ids < num_ids
    start = row.to(tl.int64)
    if HAS_ADJUSTED:
        use_adjusted = tl.load(is_adjusted + row) != 0
        raw = tl.load(logits + start * logits_stride + ids, mask=is_token & (use_adjusted == 0), other=0.0)
        changed = tl.load(adjusted + start * num_ids + ids, mask=is_token & use_adjusted, other=0.0)
        values = tl.where(use_adjusted, changed, raw)
    else:
        values = tl.load(logits + start * logits_stride + ids, mask=is_token, other=0.0)
    return tl.where(is_token & (values == values), values, NEGATIVE_INFINITY)


@triton.jit
def asks_penalties(row, repetition_penalty, frequency_penalty, presence_penalty):
    repetition = tl.load(repetition_penalty + row)
    frequency = tl.load(frequency_penalty + row)
    presence = tl.load(presence_penalty + row)
    return (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)


@triton.jit
def has_entries(offsets, row):
    return tl.load(offsets + row) < tl.load(offsets + row + 1)


@triton.jit
def history_start(tokens, tokens_stride, slots, row):
    return tokens + tl.load(slots + row) * tokens_stride


@triton.jit
def history_length(positions, max_tokens, row):
    return tl.minimum(tl.load(positions + row), max_tokens).to(tl.int32)


@triton.jit
def may_be_drawn(bitmask, bitmask_stride, mask_row, ids, is_id):
    """Whether the bits of ``ids`` are set; all are where ``mask_row`` is below 0."""
    words = tl.load(bitmask + mask_row * bitmask_stride + (ids >> 5), mask=is_id & (mask_row >= 0), other=-1)
    return ((words >> (ids & 31).to(tl.int32)) & 1) != 0


@triton.jit
def load_history(history, places, length, num_ids):
    """The tokens i32 at ``places``, and which of them have a logit."""
    seen = tl.load(history + places, mask=places < length, other=-1)
    return seen, (seen >= 0) & (seen < num_ids)


# Columns and lists are not specialized: where they begin within 16 bytes may be another in each step.
@triton.jit(
    do_not_specialize=[
        "slots",
        "positions",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "bias_offsets",
        "ban_offsets",
        "allowed_offsets",
        "bad_word_row_offsets",
        "bitmask_rows",
        "bitmask",
    ]
)
def copy_rows(
    logits,
    logits_stride,
    adjusted,
    is_adjusted,
    counts,
    num_ids,
    tokens,
    tokens_stride,
    max_tokens,
    slots,
    positions,
    repetition_penalty,
    frequency_penalty,
    presence_penalty,
    bias_offsets,
    ban_offsets,
    allowed_offsets,
    bad_word_row_offsets,
    bitmask_rows,
    bitmask,
    bitmask_stride,
    HAS_PENALTIES: tl.constexpr,
    HAS_LISTS: tl.constexpr,
    HAS_BITMASK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Say which rows are adjusted. Copy those, without what the bitmask forbids; of rows with allowed ids nothing yet.
    Clear the counts of the ids that will be counted, which is less than all."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    is_wanted = row < 0
    is_penalized = row < 0
    is_empty = row < 0
    if HAS_PENALTIES:
        is_penalized = asks_penalties(row, repetition_penalty, frequency_penalty, presence_penalty)
        is_wanted = is_wanted | is_penalized
    if HAS_LISTS:
        is_empty = has_entries(allowed_offsets, row)
        is_wanted = is_wanted | is_empty | has_entries(bias_offsets, row)
        is_wanted = is_wanted | has_entries(ban_offsets, row) | has_entries(bad_word_row_offsets, row)
    mask_row = tl.full((), -1, tl.int64)
    if HAS_BITMASK:
        mask_row = tl.load(bitmask_rows + row)
        is_wanted = is_wanted | (mask_row >= 0)
    if chunk == 0:
        tl.store(is_adjusted + row, is_wanted.to(tl.int32))
    if is_wanted:
        start = row.to(tl.int64)
        ids = chunk * CHUNK + tl.arange(0, CHUNK)
        is_token = ids < num_ids
        values = tl.load(logits + start * logits_stride + ids, mask=is_token & (is_empty == 0), other=NEGATIVE_INFINITY)
        if HAS_BITMASK:
            is_let = may_be_drawn(bitmask, bitmask_stride, mask_row, ids, is_token)
            values = tl.where(is_let, values, NEGATIVE_INFINITY)
        tl.store(adjusted + start * num_ids + ids, values, mask=is_token)
        if HAS_PENALTIES:
            history = history_start(tokens, tokens_stride, slots, row)
            length = tl.where(is_penalized, history_length(positions, max_tokens, row), 0)
            for first in range(chunk * BLOCK, length, tl.num_programs(1) * BLOCK):
                seen, is_id = load_history(history, first + tl.arange(0, BLOCK), length, num_ids)
                tl.store(counts + start * num_ids + seen, tl.zeros_like(seen), mask=is_id)


@triton.jit(
    do_not_specialize=[
        "slots",
        "positions",
        "num_prompt_tokens",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "allowed_offsets",
        "allowed_ids",
        "bitmask_rows",
        "bitmask",
    ]
)
def count_and_allow(
    logits,
    logits_stride,
    adjusted,
    counts,
    num_ids,
    tokens,
    tokens_stride,
    max_tokens,
    slots,
    positions,
    num_prompt_tokens,
    repetition_penalty,
    frequency_penalty,
    presence_penalty,
    allowed_offsets,
    allowed_ids,
    bitmask_rows,
    bitmask,
    bitmask_stride,
    HAS_PENALTIES: tl.constexpr,
    HAS_LISTS: tl.constexpr,
    HAS_BITMASK: tl.constexpr,
):
    """Count the ids of a penalized row's history, in any order; copy the logits of a row's allowed ids."""
    row, part, num_parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    start = row.to(tl.int64)
    if HAS_PENALTIES:
        is_penalized = asks_penalties(row, repetition_penalty, frequency_penalty, presence_penalty)
        history = history_start(tokens, tokens_stride, slots, row)
        length = tl.where(is_penalized, history_length(positions, max_tokens, row), 0)
        output_start = tl.load(num_prompt_tokens + row)
        for first in range(part * BLOCK, length, num_parts * BLOCK):
            places = first + tl.arange(0, BLOCK)
            seen, is_id = load_history(history, places, length, num_ids)
            count = counts + start * num_ids + seen
            is_output = places >= output_start
            tl.atomic_add(count, 1, mask=is_id & is_output, sem="relaxed")
            tl.atomic_or(count, IN_PROMPT, mask=is_id & (is_output == 0), sem="relaxed")
    if HAS_LISTS:
        first_entry, end = tl.load(allowed_offsets + row), tl.load(allowed_offsets + row + 1)
        mask_row = tl.full((), -1, tl.int64)
        if HAS_BITMASK:
            mask_row = tl.load(bitmask_rows + row)
        for first in range(first_entry + part * BLOCK, end, num_parts * BLOCK):
            places = first + tl.arange(0, BLOCK)
            ids = tl.load(allowed_ids + places, mask=places < end, other=-1)
            is_id = (ids >= 0) & (ids < num_ids)
            if HAS_BITMASK:
                is_id = is_id & may_be_drawn(bitmask, bitmask_stride, mask_row, ids, is_id)
            values = tl.load(logits + start * logits_stride + ids, mask=is_id, other=0.0)
            tl.store(adjusted + start * num_ids + ids, values, mask=is_id)


@triton.jit(
    do_not_specialize=["slots", "positions", "repetition_penalty", "frequency_penalty", "presence_penalty"],
)
def penalize(
    adjusted,
    counts,
    num_ids,
    tokens,
    tokens_stride,
    max_tokens,
    slots,
    positions,
    repetition_penalty,
    frequency_penalty,
    presence_penalty,
):
    """Repetition, frequency and presence: of an id that is in the history often, whoever takes the count does it."""
    row, part = tl.program_id(0), tl.program_id(1)
    repetition = tl.load(repetition_penalty + row)
    frequency = tl.load(frequency_penalty + row)
    presence = tl.load(presence_penalty + row)
    if (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0):
        start = row.to(tl.int64) * num_ids
        history = history_start(tokens, tokens_stride, slots, row)
        length = history_length(positions, max_tokens, row)
        for first in range(part * BLOCK, length, tl.num_programs(1) * BLOCK):
            seen, is_id = load_history(history, first + tl.arange(0, BLOCK), length, num_ids)
            taken = tl.atomic_xchg(counts + start + seen, tl.zeros_like(seen), mask=is_id, sem="relaxed")
            is_taken = is_id & (taken != 0)
            before = tl.load(adjusted + start + seen, mask=is_taken, other=0.0)
            repeated = tl.where(before > 0.0, tl.div_rn(before, repetition), before * repetition)
            values = tl.where(repetition != 1.0, repeated, before)
            count = taken & (IN_PROMPT - 1)
            values = tl.where(count > 0, values - count.to(tl.float32) * frequency, values)
            values = tl.where(count > 0, values - presence, values)
            values = tl.where(before == NEGATIVE_INFINITY, before, values)
            tl.store(adjusted + start + seen, values, mask=is_taken)


@triton.jit(
    do_not_specialize=[
        "slots",
        "positions",
        "bias_offsets",
        "bias_ids",
        "bias_values",
        "ban_offsets",
        "ban_ids",
        "bad_word_row_offsets",
        "bad_word_offsets",
        "bad_word_ids",
    ]
)
def bias_and_ban(
    adjusted,
    num_ids,
    tokens,
    tokens_stride,
    max_tokens,
    slots,
    positions,
    bias_offsets,
    bias_ids,
    bias_values,
    ban_offsets,
    ban_ids,
    bad_word_row_offsets,
    bad_word_offsets,
    bad_word_ids,
):
    """One program a row: bias, then bans, then the last ids of bad words whose other ids end the history."""
    row = tl.program_id(0)
    values_of_row = adjusted + row.to(tl.int64) * num_ids
    add_bias(
        values_of_row, num_ids, bias_ids, bias_values, tl.load(bias_offsets + row), tl.load(bias_offsets + row + 1)
    )
    tl.debug_barrier()  # an id may have a bias and be banned, by different threads
    end = tl.load(ban_offsets + row + 1)
    for first in range(tl.load(ban_offsets + row), end, BLOCK):
        places = first + tl.arange(0, BLOCK)
        ids = tl.load(ban_ids + places, mask=places < end, other=-1)
        ban(values_of_row, ids, (ids >= 0) & (ids < num_ids))
    end = tl.load(bad_word_row_offsets + row + 1)
    first_word = tl.load(bad_word_row_offsets + row)
    if first_word < end:
        history = history_start(tokens, tokens_stride, slots, row)
        length = history_length(positions, max_tokens, row)
        for first in range(first_word, end, BLOCK):
            words = first + tl.arange(0, BLOCK)
            is_word = words < end
            start = tl.load(bad_word_offsets + words, mask=is_word, other=0)
            last = tl.load(bad_word_offsets + words + 1, mask=is_word, other=0) - 1
            num_before = last - start
            ends = is_word & (num_before >= 0) & (num_before <= length)
            for place in range(tl.max(tl.where(ends, num_before, 0), axis=0)):
                is_read = ends & (place < num_before)
                seen = tl.load(history + length - num_before + place, mask=is_read, other=0)
                wanted = tl.load(bad_word_ids + start + place, mask=is_read, other=0)
                ends = ends & ((seen == wanted) | (is_read == 0))
            ids = tl.load(bad_word_ids + last, mask=ends, other=-1)
            ban(values_of_row, ids, (ids >= 0) & (ids < num_ids))


@triton.jit
def ban(values_of_row, ids, is_id):
    tl.store(values_of_row + ids, tl.full(ids.shape, NEGATIVE_INFINITY, tl.float32), mask=is_id)


@triton.jit
def add_bias(values_of_row, num_ids, bias_ids, bias_values, start, end):
    """Of an id that is listed twice the last value counts."""
    PART: tl.constexpr = 32
    for first in range(start, end, PART):
        places = first + tl.arange(0, PART)
        ids = tl.load(bias_ids + places, mask=places < end, other=-1)
        num_later = tl.zeros((PART,), tl.int32)
        for other_first in range(first, end, PART):
            others = other_first + tl.arange(0, PART)
            other_ids = tl.load(bias_ids + others, mask=others < end, other=-1)
            is_same = (ids[:, None] == other_ids[None, :]) & (places[:, None] < others[None, :])
            num_later += tl.sum(is_same.to(tl.int32), axis=1)
        is_last = (ids >= 0) & (ids < num_ids) & (num_later == 0)
        value = tl.load(bias_values + places, mask=places < end, other=0.0)
        before = tl.load(values_of_row + ids, mask=is_last, other=0.0)
        after = tl.where(before == NEGATIVE_INFINITY, before, before + value)
        tl.store(values_of_row + ids, after, mask=is_last)
