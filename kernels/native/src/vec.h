// Sixteen float lanes, and exp and log on them: single correctly rounded operations (add, multiply, divide, integer
// and bit operations), so a lane has the same bits on every instruction set and wherever it lies. No FMA here.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
typedef uint32_t UintVec __attribute__((vector_size(64)));

constexpr int kLanes = 16;

static inline Vec splat(float x) { return Vec{} + x; }
static inline IntVec splat_int(int32_t x) { return IntVec{} + x; }

static inline Vec load(const float* p) {
  Vec v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
static inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// The first n lanes; the others are `rest`.
static inline Vec load_part(const float* p, int n, float rest = 0.0f) {
  Vec v = splat(rest);
  std::memcpy(&v, p, n * sizeof(float));
  return v;
}
static inline void store_part(float* p, Vec v, int n) { std::memcpy(p, &v, n * sizeof(float)); }

static inline Vec as_float(IntVec v) { return (Vec)v; }
static inline IntVec as_int(Vec v) { return (IntVec)v; }
static inline Vec select(IntVec mask, Vec yes, Vec no) { return as_float((mask & as_int(yes)) | (~mask & as_int(no))); }
static inline Vec max(Vec a, Vec b) { return select(a > b, a, b); }

// bfloat16: the upper half of a float32, rounded to nearest even; NaN stays NaN.
static inline float from_bf16(uint16_t x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
static inline uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
typedef uint16_t HalfVec __attribute__((vector_size(32)));
static inline Vec load_bf16(const uint16_t* p) {
  HalfVec half;
  std::memcpy(&half, p, sizeof half);
  return (Vec)(__builtin_convertvector(half, UintVec) << 16);
}
static inline void store_bf16(uint16_t* p, Vec v) {
  UintVec bits = (UintVec)v;
  UintVec rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  UintVec quiet = (bits >> 16) | 0x40;
  UintVec is_nan = (UintVec)(v != v);
  HalfVec half = __builtin_convertvector((is_nan & quiet) | (~is_nan & rounded), HalfVec);
  std::memcpy(p, &half, sizeof half);
}

// A fixed tree over the sixteen lanes: the upper half is added to the lower until one is left.
static inline float tree_sum(Vec v) {
  float lanes[kLanes];
  store(lanes, v);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
  return lanes[0];
}

// The rest is for vectors of any width: Vec, or those of a register (GCC takes comparisons of wider ones apart lane by
// lane, so those of Vec are made of registers' own).
template <typename V>
using IntOf = decltype(V{} < V{});

template <typename V>
static inline IntOf<V> is_less(V a, V b) {
  return a < b;
}

// What a register holds of a Vec. GCC passes wider vectors through memory.
#if defined(__AVX512F__)
constexpr int kRegisterBytes = 64;
#elif defined(__AVX2__)
constexpr int kRegisterBytes = 32;
#else
constexpr int kRegisterBytes = 16;
#endif
constexpr int kPartLanes = kRegisterBytes / 4;
typedef float Part __attribute__((vector_size(kRegisterBytes)));

#if !defined(__AVX512F__)
static inline IntVec is_less(Vec a, Vec b) {
  constexpr int kParts = static_cast<int>(sizeof(Vec)) / kRegisterBytes;
  Part first[kParts], second[kParts];
  IntOf<Part> result[kParts];
  std::memcpy(first, &a, sizeof a);
  std::memcpy(second, &b, sizeof b);
#pragma GCC unroll 4
  for (int i = 0; i < kParts; i++) result[i] = first[i] < second[i];
  IntVec joined;
  std::memcpy(&joined, result, sizeof joined);
  return joined;
}
#endif

// exp of x <= 0, within 1.5 ulp; 0 below -87.69 (-inf included), exactly 1 at 0, NaN stays NaN.
// exp(x) = 2^n exp(r), n the integer nearest to x / ln 2. The coefficients are a minimax fit (see kernels/reference).
template <typename V>
static inline V exp_nonpositive(V x) {
  const V lowest = V{} - 88.0f;
  const IntOf<V> is_low = is_less(x, lowest);
  x = (V)((is_low & (IntOf<V>)lowest) | (~is_low & (IntOf<V>)x));
  const V shifted = x * 1.4426950216293335f + 12582912.0f;
  const V scale = (V)(((IntOf<V>)shifted + 127) << 23);
  const V n = shifted - 12582912.0f;
  V r = x - n * 0.693145751953125f;
  r = r - n * 1.428606765330187e-06f;
  V p = r * 0.0013950486900284886f + 0.008368889801204205f;
  p = p * r + 0.04166620597243309f;
  p = p * r + 0.166665181517601f;
  p = p * r + 0.5f;
  p = p * r * r + r + 1.0f;
  return p * scale;
}

// ln(2^exponent (1 + fraction)) for -1/2 <= fraction < 0.42, within 3 ulp: 2 atanh(f / (2 + f)).
template <typename V>
static inline V log_of_parts(V exponent, V fraction) {
  const V s = fraction / (fraction + 2.0f);
  const V square = s * s;
  const V twice = s * 2.0f;
  V p = square * 0.14015644788742065f + 0.13998930156230927f;
  p = p * square + 0.2001088559627533f;
  p = p * square + 0.3333320617675781f;
  V result = p * square * twice + twice;
  result = result + exponent * 1.428606765330187e-06f;
  return result + exponent * 0.693145751953125f;
}

// x = 2^exponent (1 + fraction) exactly, sqrt(1/2) <= 1 + fraction < sqrt(2); x positive and normal.
template <typename V>
static inline void split_exponent(V x, V* exponent, V* fraction) {
  const IntOf<V> bits = (IntOf<V>)x;
  const IntOf<V> e = (bits - 0x3F3504F3) >> 23;
  *fraction = (V)(bits - (e << 23)) - 1.0f;
  *exponent = __builtin_convertvector(e, V);
}

template <typename V>
static inline V log(V x) {
  V exponent, fraction;
  split_exponent(x, &exponent, &fraction);
  return log_of_parts(exponent, fraction);
}

// x / (1 + exp(-x)); the exponential is that of -|x|, which cannot overflow.
template <typename V>
static inline V silu(V x) {
  const V decay = exp_nonpositive((V)((IntOf<V>)x | INT32_MIN));
  const IntOf<V> is_negative = is_less(x, V{});
  const V numerator = (V)((is_negative & (IntOf<V>)decay) | (~is_negative & (IntOf<V>)(V{} + 1.0f)));
  return x * numerator / (decay + 1.0f);
}

}  // namespace octavo
