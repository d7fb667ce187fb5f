// Attention of queries, keys and values with an optional bias: forward, and the gradients. This file is appended to
// vector.cuh. NVRTC receives HEAD, the width of a head (32 or 64), and BIASED (0 or 1).
//
// The kernels never store the matrix of scores. The forward pass keeps a running maximum and sum per query (Milakov and
// Gimelshein 2018), and stores only their logarithm; the backward pass computes the scores again (Dao et al. 2022).
// Exponents have base 2.
//
// A sequence consists of the tokens that attend to one another: an image, or a window of an image. Tokens are rows of
// `stride` 16-bit numbers, and a head uses HEAD numbers of them. With `order`, [windows, tokens], token i of window w is
// row order[w][i] of its image; without it, an image is one sequence. `bias` is [bias_windows, heads, queries, keys]
// float32, and sequence s uses its window s % bias_windows.
//
// A warp owns strips of 16 tokens, whose rows it keeps in registers. The rows of the other side are in shared memory:
// `tile` rows of two tensors at a time, which is the whole sequence if it fits, so that all strips use them without
// waiting for another warp. Matrix products are those of tensor cores: fragments of 16 x 16 (left), 16 x 8 (right) and
// 16 x 8 (result).

#define WARPS 4
#define THREADS (32 * WARPS)
#define BLOCKS 3 // per multiprocessor, which limits the registers of a thread to 168
#define STRIP 16
#define GROUP 4           // chunks of 16 tokens whose scores a warp keeps in registers
#define STEPS (HEAD / 16) // of products whose inner dimension is the width of a head
#define PARTS (HEAD / 8)  // vectors of a row
#define LOG2E 1.44269504f
#define LOWEST (-1e30f)

typedef unsigned short Half; // bits of float16 or bfloat16

#ifdef EMULATED
#define SHARED_TILES() reinterpret_cast<Half *>(dynamic_shared)
#else
#define SHARED_TILES() shared_tiles()

__device__ __forceinline__ Half *shared_tiles() {
  extern __shared__ uint4 shared_memory[];
  return reinterpret_cast<Half *>(shared_memory);
}

// d += a b
__device__ __forceinline__ void multiply_tiles(float (&d)[4], const unsigned int (&a)[4], unsigned int b0,
                                               unsigned int b1) {
#if ELEMENT == 1
#define MULTIPLY "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define MULTIPLY "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
  asm(MULTIPLY " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices; lane 8 m + r passes the address of row r of matrix m in shared memory.
__device__ __forceinline__ void load_tiles(unsigned int (&result)[4], const void *row, bool transposed) {
  const unsigned int address = (unsigned int)__cvta_generic_to_shared(row);
  if (transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(result[0]), "=r"(result[1]), "=r"(result[2]), "=r"(result[3])
                 : "r"(address)
                 : "memory");
}

// Starts to copy 16 bytes to shared memory, or writes zeros there.
__device__ __forceinline__ void copy_vector(Half *target, const Half *source, bool used) {
  const unsigned int address = (unsigned int)__cvta_generic_to_shared(target);
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(used ? 16 : 0)
               : "memory");
}

// Waits for the copies of this thread.
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

__device__ __forceinline__ float power(float x) { // 2^x
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
#endif

struct Tokens { // the rows of one sequence in a tensor, for one head
  const Half *data;
  const int *order;
  int stride;
  __device__ __forceinline__ const Half *row(int i) const { return data + (long long)(order ? order[i] : i) * stride; }
};

__device__ __forceinline__ Tokens tokens(const Half *data, const int *order, int sequence, int windows, int count,
                                         int stride, int head) {
  const int image = sequence / windows, window = sequence % windows;
  const long long first = (long long)image * (order ? windows * count : count);
  return {data + first * stride + head * HEAD, order ? order + window * count : nullptr, stride};
}

// The address of a vector of a row in a tile. Vectors are permuted, so that 8 rows use all banks of shared memory.
__device__ __forceinline__ Half *cell(Half *tile, int row, int part) {
  return tile + row * HEAD + (part ^ (HEAD == 64 ? row & 7 : row >> 1 & 3)) * 8;
}

// Starts to copy rows [first, first + size) to a tile. Rows from `count` on become zero.
__device__ __forceinline__ void copy_rows(Half *tile, const Tokens &source, int first, int size, int count) {
  const int part = threadIdx.x % PARTS;
  for (int i = threadIdx.x / PARTS; i < size; i += THREADS / PARTS) {
    const bool used = first + i < count;
    copy_vector(cell(tile, i, part), source.row(used ? first + i : 0) + part * 8, used);
  }
}

// The left fragments of 16 rows, from global memory. Rows from `count` on are zero.
__device__ __forceinline__ void load_left(unsigned int (&fragment)[STEPS][4], const Tokens &source, int first,
                                          int count) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first + half * 8 + lane / 4;
    const Half *data = source.row(min(row, count - 1)) + lane % 4 * 2;
#pragma unroll
    for (int k = 0; k < STEPS; ++k)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        fragment[k][2 * i + half] =
            row < count ? *reinterpret_cast<const unsigned int *>(data + k * 16 + i * 8) : 0u;
  }
}

// result [16, 16] = left right^T, where right are rows [first, first + 16) of a tile.
__device__ __forceinline__ void compare(float (&result)[2][4], const unsigned int (&left)[STEPS][4], Half *tile,
                                        int first) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) result[n][i] = 0.f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    unsigned int right[4];
    load_tiles(right, cell(tile, first + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2), false);
    multiply_tiles(result[0], left[k], right[0], right[1]);
    multiply_tiles(result[1], left[k], right[2], right[3]);
  }
}

// sum [16, HEAD] += left [16, 16] right, where right are rows [first, first + 16) of a tile. The left matrix is a
// result of `compare`, rounded to 16 bits.
__device__ __forceinline__ void mix(float (&sum)[2 * STEPS][4], const float (&left)[2][4], Half *tile, int first) {
  const int lane = threadIdx.x % 32;
  const unsigned int fragment[4] = {pack_pair(left[0][0], left[0][1]), pack_pair(left[0][2], left[0][3]),
                                    pack_pair(left[1][0], left[1][1]), pack_pair(left[1][2], left[1][3])};
#pragma unroll
  for (int n = 0; n < STEPS; ++n) {
    unsigned int right[4];
    load_tiles(right, cell(tile, first + lane / 8 % 2 * 8 + lane % 8, 2 * n + lane / 16), true);
    multiply_tiles(sum[2 * n], fragment, right[0], right[1]);
    multiply_tiles(sum[2 * n + 1], fragment, right[2], right[3]);
  }
}

// Stores 16 rows, multiplied by one factor for the upper and one for the lower 8 rows.
__device__ __forceinline__ void store_rows(const Tokens &target, const float (&value)[2 * STEPS][4], float upper,
                                           float lower, int first, int count) {
  const int lane = threadIdx.x % 32, row = first + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + half * 8 >= count) break;
    const float factor = half ? lower : upper;
    Half *data = const_cast<Half *>(target.row(row + half * 8)) + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < 2 * STEPS; ++n)
      *reinterpret_cast<unsigned int *>(data + n * 8) =
          pack_pair(value[n][2 * half] * factor, value[n][2 * half + 1] * factor);
  }
}

// Returns the sum or the maximum over the four threads that share a row of a fragment.
__device__ __forceinline__ float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}
__device__ __forceinline__ float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
}

// The state of 16 queries in the forward pass; two rows per thread.
struct Queries {
  float sum[2 * STEPS][4], best[2], total[2];
};

// Processes up to GROUP chunks of keys, from key `from` on, which are rows of the tiles from `first` on.
__device__ __forceinline__ void attend(Queries &state, const unsigned int (&left)[STEPS][4], Half *key_tile,
                                       Half *value_tile, const float *bias, float factor, int row, int from, int first,
                                       int keys, int queries) {
  const int lane = threadIdx.x % 32, chunks = min(GROUP, (keys - from + STRIP - 1) / STRIP);
  float score[GROUP][2][4], highest[2] = {state.best[0], state.best[1]};
#pragma unroll
  for (int c = 0; c < GROUP; ++c) {
    if (c >= chunks) break;
    compare(score[c], left, key_tile, first + c * STRIP);
    const bool whole = from + (c + 1) * STRIP <= keys;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = from + c * STRIP + n * 8 + lane % 4 * 2 + i % 2;
        const bool used = whole || column < keys;
#if BIASED
        const int line = min(row + i / 2 * 8, queries - 1);
        score[c][n][i] = score[c][n][i] * factor + (used ? bias[line * keys + column] * LOG2E : 0.f);
#endif
        score[c][n][i] = used ? score[c][n][i] : LOWEST;
        highest[i / 2] = fmaxf(highest[i / 2], score[c][n][i]);
      }
  }
  const float scale = BIASED ? 1.f : factor; // without a bias, scores are not multiplied yet
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    highest[half] = quad_max(highest[half]);
    const float shrink = power((state.best[half] - highest[half]) * scale);
    state.best[half] = highest[half];
    state.total[half] *= shrink;
#pragma unroll
    for (int n = 0; n < 2 * STEPS; ++n) {
      state.sum[n][2 * half] *= shrink;
      state.sum[n][2 * half + 1] *= shrink;
    }
  }
  const float offset[2] = {highest[0] * scale, highest[1] * scale};
#pragma unroll
  for (int c = 0; c < GROUP; ++c) {
    if (c >= chunks) break;
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        score[c][n][i] = power(score[c][n][i] * scale - offset[i / 2]);
        state.total[i / 2] += score[c][n][i];
      }
    mix(state.sum, score[c], value_tile, first + c * STRIP);
  }
}

// Block `blockIdx.x` processes every parts-th set of WARPS strips of queries, for one head of one sequence.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention(const Half *query, const Half *key, const Half *value, Half *output, const float *bias, const int *order,
              float *logarithms, float scale, int queries, int keys, int heads, int windows, int bias_windows,
              int query_stride, int key_stride, int output_stride, int tile, int parts) {
  Half *key_tile = SHARED_TILES(), *value_tile = key_tile + tile * HEAD;
  const int part = blockIdx.x % parts, head = blockIdx.x / parts % heads, sequence = blockIdx.x / parts / heads;
  const int lane = threadIdx.x % 32, strips = (queries + STRIP - 1) / STRIP;
  const Tokens q = tokens(query, order, sequence, windows, queries, query_stride, head);
  const Tokens k = tokens(key, order, sequence, windows, keys, key_stride, head);
  const Tokens v = tokens(value, order, sequence, windows, keys, key_stride, head);
  const Tokens target = tokens(output, order, sequence, windows, queries, output_stride, head);
  if (BIASED) bias += (long long)(sequence % bias_windows * heads + head) * queries * keys;
  const float factor = scale * LOG2E;
  int loaded = -1;
  for (int set = part * WARPS; set < strips; set += parts * WARPS) {
    const int start = (set + threadIdx.x / 32) * STRIP, row = start + lane / 4; // and row + 8
    unsigned int left[STEPS][4];
    if (start < queries) load_left(left, q, start, queries);
    Queries state = {{}, {LOWEST, LOWEST}, {}};
    for (int from = 0; from < keys; from += tile) {
      if (from != loaded) {
        const int size = min(tile, (keys - from + STRIP - 1) / STRIP * STRIP);
        __syncthreads();
        copy_rows(key_tile, k, from, size, keys);
        copy_rows(value_tile, v, from, size, keys);
        await_copies();
        __syncthreads();
        loaded = from;
      }
      if (start < queries)
        for (int first = 0; first < tile && from + first < keys; first += GROUP * STRIP)
          attend(state, left, key_tile, value_tile, bias, factor, row, from + first, first, min(keys, from + tile),
                 queries);
    }
    if (start >= queries) continue;
    const float total[2] = {quad_sum(state.total[0]), quad_sum(state.total[1])};
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (lane % 4 == 0 && row + half * 8 < queries)
        logarithms[(sequence * heads + head) * queries + row + half * 8] =
            state.best[half] * (BIASED ? 1.f : factor) + log2f(total[half]);
    store_rows(target, state.sum, 1.f / total[0], 1.f / total[1], start, queries);
  }
}

// The gradients of queries and, unless `dbias` is null, of the bias; also `products`, the products of the rows of the
// output and its gradient, [sequences, heads, queries]. A block processes strips of queries of every parts-th sequence
// with the same window of the bias, and stores the sum of their gradients of the bias: `dbias` is
// [parts, bias_windows, heads, queries, keys]; then queries and keys <= GROUP * STRIP. Without
// `dbias`, `groups` is the number of sequences, and parts is 1.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_query_gradient(const Half *query, const Half *key, const Half *value, const Half *output,
                             const Half *gradient, const float *bias, const int *order, const float *logarithms,
                             Half *dquery, float *products, float *dbias, float scale, int queries, int keys, int heads,
                             int windows, int bias_windows, int query_stride, int key_stride, int output_stride,
                             int tile, int sequences, int groups, int parts) {
  Half *key_tile = SHARED_TILES(), *value_tile = key_tile + tile * HEAD;
  const int head = blockIdx.x % heads, group = blockIdx.x / heads % groups, part = blockIdx.x / heads / groups;
  const int lane = threadIdx.x % 32, strips = (queries + STRIP - 1) / STRIP;
  const float factor = scale * LOG2E;
#if BIASED
  float bias_sum[GROUP][2][4] = {};
#endif
  for (int sequence = group + part * groups; sequence < sequences; sequence += parts * groups) {
    const long long numbers = (long long)(sequence * heads + head) * queries;
    const Tokens q = tokens(query, order, sequence, windows, queries, query_stride, head);
    const Tokens k = tokens(key, order, sequence, windows, keys, key_stride, head);
    const Tokens v = tokens(value, order, sequence, windows, keys, key_stride, head);
    const Tokens o = tokens(output, order, sequence, windows, queries, output_stride, head);
    const Tokens d = tokens(gradient, order, sequence, windows, queries, output_stride, head);
    const Tokens target = tokens(dquery, order, sequence, windows, queries, query_stride, head);
#if BIASED
    const float *biases = bias + (long long)(sequence % bias_windows * heads + head) * queries * keys;
#endif
    int loaded = -1;
    for (int set = 0; set < strips; set += WARPS) {
      const int start = (set + threadIdx.x / 32) * STRIP, row = start + lane / 4; // and row + 8
      unsigned int left_query[STEPS][4], left_gradient[STEPS][4];
      float product[2] = {}, logarithm[2] = {};
      if (start < queries) {
        unsigned int left_output[STEPS][4];
        load_left(left_query, q, start, queries);
        load_left(left_gradient, d, start, queries);
        load_left(left_output, o, start, queries);
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            float a, b, c, e;
            unpack_pair(left_gradient[step][i], a, b);
            unpack_pair(left_output[step][i], c, e);
            product[i % 2] += a * c + b * e;
          }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          product[half] = quad_sum(product[half]);
          if (row + half * 8 >= queries) continue;
          logarithm[half] = logarithms[numbers + row + half * 8];
          if (lane % 4 == 0) products[numbers + row + half * 8] = product[half];
        }
      }
      float sum[2 * STEPS][4] = {};
      for (int from = 0; from < keys; from += tile) {
        if (from != loaded) {
          const int size = min(tile, (keys - from + STRIP - 1) / STRIP * STRIP);
          __syncthreads();
          copy_rows(key_tile, k, from, size, keys);
          copy_rows(value_tile, v, from, size, keys);
          await_copies();
          __syncthreads();
          loaded = from;
        }
        if (start >= queries) continue;
        for (int first = 0; first < tile && from + first < keys; first += GROUP * STRIP)
#pragma unroll // so that `bias_sum` stays in registers
          for (int c = 0; c < GROUP; ++c) {
            const int place = first + c * STRIP; // in the tiles
            if (place >= tile || from + place >= keys) break;
            float weight[2][4], slope[2][4]; // of 16 queries and 16 keys
            compare(weight, left_query, key_tile, place);
            compare(slope, left_gradient, value_tile, place);
            const bool whole = from + place + STRIP <= keys;
#pragma unroll
            for (int n = 0; n < 2; ++n)
#pragma unroll
              for (int i = 0; i < 4; ++i) {
                const int column = from + place + n * 8 + lane % 4 * 2 + i % 2;
                const bool used = whole || column < keys;
                float s = weight[n][i] * factor - logarithm[i / 2];
#if BIASED
                const int line = min(row + i / 2 * 8, queries - 1);
                s += used ? biases[line * keys + column] * LOG2E : 0.f;
#endif
                slope[n][i] = used ? power(s) * (slope[n][i] - product[i / 2]) : 0.f;
#if BIASED
                bias_sum[c][n][i] += slope[n][i];
#endif
              }
            mix(sum, slope, key_tile, place);
          }
      }
      if (start < queries) store_rows(target, sum, scale, scale, start, queries);
    }
    __syncthreads(); // the tiles are free for the next sequence
  }
#if BIASED
  if (!dbias) return;
  dbias += (long long)((part * groups + group) * heads + head) * queries * keys;
  const int row = threadIdx.x / 32 * STRIP + lane / 4;
#pragma unroll
  for (int c = 0; c < GROUP; ++c)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = c * STRIP + n * 8 + lane % 4 * 2 + i % 2, line = row + i / 2 * 8;
        if (column < keys && line < queries) dbias[line * keys + column] = bias_sum[c][n][i];
      }
#endif
}

// The gradients of keys and values. Block `blockIdx.x` processes every parts-th set of WARPS strips of keys, for one
// head of one sequence. `products` are those of `attention_query_gradient`.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    attention_key_gradient(const Half *query, const Half *key, const Half *value, const Half *gradient,
                           const float *bias, const int *order, const float *logarithms, const float *products,
                           Half *dkey, Half *dvalue, float scale, int queries, int keys, int heads, int windows,
                           int bias_windows, int query_stride, int key_stride, int output_stride, int tile, int parts) {
  Half *query_tile = SHARED_TILES(), *gradient_tile = query_tile + tile * HEAD;
  float *logarithm = reinterpret_cast<float *>(gradient_tile + tile * HEAD), *product = logarithm + tile;
  const int part = blockIdx.x % parts, head = blockIdx.x / parts % heads, sequence = blockIdx.x / parts / heads;
  const int lane = threadIdx.x % 32, strips = (keys + STRIP - 1) / STRIP;
  const Tokens q = tokens(query, order, sequence, windows, queries, query_stride, head);
  const Tokens k = tokens(key, order, sequence, windows, keys, key_stride, head);
  const Tokens v = tokens(value, order, sequence, windows, keys, key_stride, head);
  const Tokens d = tokens(gradient, order, sequence, windows, queries, output_stride, head);
  if (BIASED) bias += (long long)(sequence % bias_windows * heads + head) * queries * keys;
  const long long numbers = (long long)(sequence * heads + head) * queries;
  const float factor = scale * LOG2E;
  int loaded = -1;
  for (int set = part * WARPS; set < strips; set += parts * WARPS) {
    const int start = (set + threadIdx.x / 32) * STRIP, row = start + lane / 4; // and row + 8
    unsigned int left_key[STEPS][4], left_value[STEPS][4];
    if (start < keys) {
      load_left(left_key, k, start, keys);
      load_left(left_value, v, start, keys);
    }
    float key_sum[2 * STEPS][4] = {}, value_sum[2 * STEPS][4] = {};
    for (int from = 0; from < queries; from += tile) {
      if (from != loaded) {
        const int size = min(tile, (queries - from + STRIP - 1) / STRIP * STRIP);
        __syncthreads();
        copy_rows(query_tile, q, from, size, queries);
        copy_rows(gradient_tile, d, from, size, queries);
        for (int i = threadIdx.x; i < size; i += THREADS) { // the weights of unused queries become 0
          logarithm[i] = from + i < queries ? logarithms[numbers + from + i] : -LOWEST;
          product[i] = from + i < queries ? products[numbers + from + i] : 0.f;
        }
        await_copies();
        __syncthreads();
        loaded = from;
      }
      if (start >= keys) continue;
      const int chunks = (min(tile, queries - from) + STRIP - 1) / STRIP;
      for (int c = 0; c < chunks; ++c) {
        float weight[2][4], slope[2][4]; // of 16 keys and 16 queries
        compare(weight, left_key, query_tile, c * STRIP);
        compare(slope, left_value, gradient_tile, c * STRIP);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = c * STRIP + n * 8 + lane % 4 * 2 + i % 2;
            float s = weight[n][i] * factor - logarithm[column];
#if BIASED
            const int line = min(row + i / 2 * 8, keys - 1);
            s += from + column < queries ? bias[(from + column) * keys + line] * LOG2E : 0.f;
#endif
            weight[n][i] = power(s);
            slope[n][i] = weight[n][i] * (slope[n][i] - product[column]);
          }
        mix(value_sum, weight, gradient_tile, c * STRIP);
        mix(key_sum, slope, query_tile, c * STRIP);
      }
    }
    if (start >= keys) continue;
    store_rows(tokens(dkey, order, sequence, windows, keys, key_stride, head), key_sum, scale, scale, start, keys);
    store_rows(tokens(dvalue, order, sequence, windows, keys, key_stride, head), value_sum, 1.f, 1.f, start, keys);
  }
}
