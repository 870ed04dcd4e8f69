// The small per-row operations of a layer, in float32: embedding, norms, activation, rotary positions, KV writes.
#include "layers.h"

#include "isa.h"
#include "kv_write.h"
#include "layers_rows.h"

namespace octavo {
namespace OCTAVO_ISA {

// Where a row's K and V of one head go.
struct KVTarget {
  KVLayout layout;
  void* cache;
  int64_t dtype;
  int64_t block_size;
  int64_t head_size;

  void put(int64_t slot, int64_t head, const float* row, bool is_key, void* scratch) const {
    const int64_t block = slot / block_size, token = slot % block_size;
    char* unit = static_cast<char*>(cache) + block * layout.block_bytes + head * layout.head_bytes +
                 token / kUnit * layout.unit_bytes;
    put_token(layout, dtype, row, head_size, is_key, token % kUnit, unit, scratch);
  }
};

template <typename Args>
static KVTarget kv_target(const Args& args) {
  return {kv_layout(args.kv_dtype, args.block_size, args.num_kv_heads, args.head_size), args.cache, args.kv_dtype,
          args.block_size, args.head_size};
}

constexpr int64_t kMaxHeadSize = 1024;  // Python checks

static void convert(const uint16_t* x, int64_t size, float* out) {
  for_lanes(size, [&](int64_t i, int count) { store_lanes(out + i, load_lanes(x + i, count), count); });
}

void embed(const octavo_embed_args* args) {
  const octavo_embed_args& a = *args;
  for_rows(a.num_rows, a.size / 2, [&](int64_t row) {
    float* out = a.out.row<float>(row);
    if (a.table_dtype == kBFloat16) {
      convert(a.table.row<uint16_t>(a.ids[row]), a.size, out);
    } else {
      std::memcpy(out, a.table.row<float>(a.ids[row]), a.size * sizeof(float));
    }
  });
}

template <typename Out>
static void rms_norm_as(const octavo_rms_norm_args& a) {
  const float eps = static_cast<float>(a.eps);
  for_rows(a.num_rows, a.size * a.num_heads, [&](int64_t row) {
    for (int64_t head = 0; head < a.num_heads; head++)
      norm_row(a.x.row<float>(row) + head * a.size, a.weight, a.size, eps, a.out.row<Out>(row) + head * a.size);
  });
}

void rms_norm(const octavo_rms_norm_args* args) {
  args->out_dtype == kBFloat16 ? rms_norm_as<uint16_t>(*args) : rms_norm_as<float>(*args);
}

template <typename Out>
static void silu_and_mul_as(const octavo_silu_and_mul_args& a) {
  for_rows(a.num_rows, 2 * a.size, [&](int64_t row) {
    const float* gate = a.gate_up.row<float>(row);
    Out* out = a.out.row<Out>(row);
    for_lanes(a.size, [&](int64_t i, int count) {
      store_lanes(out + i, silu(load_lanes(gate + i, count)) * load_lanes(gate + a.size + i, count), count);
    });
  });
}

void silu_and_mul(const octavo_silu_and_mul_args* args) {
  args->out_dtype == kBFloat16 ? silu_and_mul_as<uint16_t>(*args) : silu_and_mul_as<float>(*args);
}

template <typename Out>
static void rotary_as(const octavo_rotary_args& a) {
  for_rows(a.num_rows, a.num_heads * a.head_size, [&](int64_t row) {
    const float* turn = a.cos_sin.row<float>(a.positions[row]);
    for (int64_t head = 0; head < a.num_heads; head++) {
      const int64_t start = head * a.head_size;
      rotate_head(a.x.row<float>(row) + start, turn, a.half_size, a.head_size, a.out.row<Out>(row) + start);
    }
  });
}

void rotary(const octavo_rotary_args* args) {
  args->out_dtype == kBFloat16 ? rotary_as<uint16_t>(*args) : rotary_as<float>(*args);
}

void write_kv(const octavo_write_kv_args* args) {
  const octavo_write_kv_args& a = *args;
  const KVTarget target = kv_target(a);
  for_rows(a.num_rows, 2 * a.num_kv_heads * a.head_size, [&](int64_t row) {
    float converted[kMaxHeadSize], scratch[kMaxHeadSize];
    const auto put = [&](const Rows& rows, int64_t dtype, bool is_key) {
      for (int64_t head = 0; head < a.num_kv_heads; head++) {
        const float* x = rows.row<float>(row) + head * a.head_size;
        if (dtype == kBFloat16) {
          convert(rows.row<uint16_t>(row) + head * a.head_size, a.head_size, converted);
          x = converted;
        }
        target.put(a.kv_slots[row], head, x, is_key, scratch);
      }
    };
    put(a.k, a.k_dtype, true);
    put(a.v, a.v_dtype, false);
  });
}

// x rounded to `Out`, as float32.
static const float* round_row(const float* x, int64_t, float*, float) { return x; }
static const float* round_row(const float* x, int64_t size, float* out, uint16_t) {
  for_lanes(size, [&](int64_t i, int count) {
    uint16_t rounded[kLanes];
    store_bf16(rounded, load_lanes(x + i, count));
    store_lanes(out + i, load_bf16(rounded), count);
  });
  return out;
}

template <typename Out>
static void rotary_write_kv_as(const octavo_rotary_write_kv_args& a) {
  const KVTarget target = kv_target(a);
  const float eps = static_cast<float>(a.eps);
  for_rows(a.num_rows, (a.num_heads + 3 * a.num_kv_heads) * a.head_size, [&](int64_t row) {
    float normed[kMaxHeadSize], turned[kMaxHeadSize], rounded[kMaxHeadSize], scratch[kMaxHeadSize];
    const float* turn = a.cos_sin.row<float>(a.positions[row]);
    const auto norm = [&](const float* x, const float* weight) -> const float* {
      if (weight == nullptr) return x;
      norm_row(x, weight, a.head_size, eps, normed);
      return normed;
    };
    for (int64_t head = 0; head < a.num_heads; head++) {
      const int64_t start = head * a.head_size;
      const float* x = norm(a.q.row<float>(row) + start, a.q_norm);
      rotate_head(x, turn, a.half_size, a.head_size, a.q_out.row<Out>(row) + start);
    }
    for (int64_t head = 0; head < a.num_kv_heads; head++) {
      const int64_t start = head * a.head_size;
      rotate_head(norm(a.k.row<float>(row) + start, a.k_norm), turn, a.half_size, a.head_size, turned);
      target.put(a.kv_slots[row], head, round_row(turned, a.head_size, rounded, Out()), true, scratch);
      const float* v = round_row(a.v.row<float>(row) + start, a.head_size, rounded, Out());
      target.put(a.kv_slots[row], head, v, false, scratch);
    }
  });
}

void rotary_write_kv(const octavo_rotary_write_kv_args* args) {
  args->out_dtype == kBFloat16 ? rotary_write_kv_as<uint16_t>(*args) : rotary_write_kv_as<float>(*args);
}

}  // namespace OCTAVO_ISA
}  // namespace octavo

OCTAVO_DISPATCH(embed, octavo_embed_args)
OCTAVO_DISPATCH(rms_norm, octavo_rms_norm_args)
OCTAVO_DISPATCH(silu_and_mul, octavo_silu_and_mul_args)
OCTAVO_DISPATCH(rotary, octavo_rotary_args)
OCTAVO_DISPATCH(write_kv, octavo_write_kv_args)
OCTAVO_DISPATCH(rotary_write_kv, octavo_rotary_write_kv_args)
