"""One of each message with every field set, and strategies for all of them."""

from hypothesis import strategies as st

from ipc.messages import (
    Abort,
    Accepted,
    Add,
    Beat,
    Drain,
    EventKind,
    Failed,
    Finish,
    FinishReason,
    Hello,
    Output,
    Outputs,
    Profile,
    Profiled,
    Ready,
    Refused,
    Stats,
    TokenLogprobs,
    WaitReason,
)
from ipc.params import BeamParams, SamplingParams

PARAMS = SamplingParams(
    temperature=0.5,
    top_k=4,
    top_p=0.25,
    min_p=0.125,
    presence_penalty=-1.0,
    frequency_penalty=1.5,
    repetition_penalty=2.0,
    seed=2**64 - 1,
    max_tokens=7,
    min_tokens=2,
    eos_token_ids=(1, 2),
    stop_token_ids=(3,),
    num_logprobs=5,
    logit_bias=((6, -100.0),),
    allowed_token_ids=(8, 9),
    bad_words=((10, 11), (12,)),
)

# ---- strategies

u64 = st.integers(0, 2**64 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
floats = st.floats(allow_nan=False)
ids = st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple)
raw = st.binary(max_size=12)
params = st.builds(
    SamplingParams,
    temperature=floats,
    top_k=i64,
    top_p=floats,
    min_p=floats,
    presence_penalty=floats,
    frequency_penalty=floats,
    repetition_penalty=floats,
    seed=u64,
    max_tokens=i64,
    min_tokens=i64,
    eos_token_ids=ids,
    stop_token_ids=ids,
    num_logprobs=i64,
    logit_bias=st.lists(st.tuples(i64, floats), max_size=2).map(tuple),
    allowed_token_ids=ids,
    bad_words=st.lists(ids, max_size=2).map(tuple),
)
adds = st.builds(
    Add,
    request_id=u64,
    arrival_ns=i64,
    model=st.text(max_size=5),
    prompt_ids=raw,
    params=params,
    choices=st.lists(st.tuples(i64, raw), max_size=3).map(tuple),
    adapter=st.text(max_size=3),
    num_prompt_logprobs=i64,
    grammar=st.none() | st.tuples(st.text(max_size=3), st.text(max_size=3)),
    cache_salt=st.text(max_size=3),
    priority=i64,
    tenant=st.text(max_size=3),
    weight=floats,
    deadline_ns=i64,
    is_resumed=st.booleans(),
    traceparent=st.text(max_size=3),
    beam=st.none() | st.builds(BeamParams, i64, floats),
)
to_engine = st.one_of(
    st.builds(Hello, i64),
    adds,
    st.builds(Finish, u64, i64, st.sampled_from(FinishReason), i64),
    st.builds(Abort, u64),
    st.just(Drain()),
    st.builds(Profile, i64, st.text(max_size=5), i64),
)
logprobs = st.builds(TokenLogprobs, i64, raw, raw, raw, raw)
outputs = st.builds(
    Output,
    request_id=u64,
    choice=i64,
    token_ids=raw,
    logprobs=st.none() | logprobs,
    finish=st.none() | st.sampled_from(FinishReason),
    stop_token_id=st.none() | i64,
    events=st.lists(st.tuples(st.sampled_from(EventKind), i64, i64 | st.sampled_from(WaitReason)), max_size=3).map(
        tuple
    ),
    num_cached_tokens=i64,
    prompt_logprobs=st.none() | logprobs,
)
to_gateway = st.one_of(
    st.builds(Ready, i64, i64, st.text(max_size=3), st.text(max_size=3), i64, i64, i64, i64, i64, i64, i64, i64, i64),
    st.builds(Accepted, u64),
    st.builds(Refused, u64, st.text(max_size=9), i64),
    st.builds(Failed, u64, i64, st.text(max_size=9), st.text(max_size=9)),
    st.builds(Outputs, i64, i64, st.lists(outputs, max_size=3).map(tuple)),
    st.builds(Beat, i64, i64, i64, i64),
    st.builds(
        Profiled,
        i64,
        st.text(max_size=5),
        st.text(max_size=5),
        st.lists(st.text(max_size=5), max_size=2).map(tuple),
        i64,
        floats,
    ),
    st.builds(
        Stats,
        *[i64] * 17,
        step_tokens=st.lists(i64, max_size=3).map(tuple),
        step_tokens_sum=i64,
        waiting_by_reason=st.lists(st.tuples(st.sampled_from(WaitReason), i64), max_size=2).map(tuple),
    ),
)
