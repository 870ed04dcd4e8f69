// octavo_logprobs: log-softmax of raw logits for given ids, row by row.
#include "isa.h"
#include "logprobs_row.h"

namespace octavo {
namespace OCTAVO_ISA {

void logprobs(const octavo_logprobs_args* args) {
  const int64_t size = args->vocab_size, num_top = args->num_top;
  parallel_for(args->num_rows, [&](int64_t row, int thread) {
    float* scratch = static_cast<float*>(thread_scratch(thread, logprobs_scratch(size) * sizeof(float)));
    const TopLogprobs out = {args->logprobs + row, args->ranks + row, args->top_ids + row * num_top,
                             args->top_logprobs + row * num_top};
    logprobs_row(args->logits.row<const float>(row), size, args->ids[row], num_top, scratch, out);
  });
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

OCTAVO_DISPATCH(logprobs, octavo_logprobs_args)
