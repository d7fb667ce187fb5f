// Attention of queries, keys and values with an optional bias: forward, and the gradients. This file is appended to
// vector.cuh. NVRTC receives HEAD, the width of a head: 32 or 64.
//
// The kernels never store the matrix of scores. The forward pass keeps a running maximum and sum per query (Milakov and
// Gimelshein 2018), and stores only their logarithm; the backward pass computes the scores again (Dao et al. 2022).
// Exponents have base 2.
//
// A sequence consists of the tokens that attend to one another: an image, or a window of an image. Tokens are rows of
// `stride` 16-bit numbers, and a head uses HEAD numbers of them. With `order`, [windows, queries], token i of a window w
// is row order[w][i] of its image; without it, an image is one sequence. `bias` is [bias_windows, heads, queries, keys]
// float32, and sequence s uses its window s % bias_windows.
//
// A block of four warps processes a tile of 64 queries or keys, and each warp 16 of them. Matrix products are those of
// tensor cores: fragments of 16 x 16 (left), 16 x 8 (right) and 16 x 8 (result).

#define THREADS 128
#define TILE 64
#define STEPS (HEAD / 16)   // of products whose inner dimension is the width of a head
#define PITCH (HEAD + 8)    // of a row in shared memory; the addition avoids bank conflicts
#define LOG2E 1.44269504f

typedef unsigned short Half; // bits of float16 or bfloat16

#ifndef EMULATED
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
#endif

__device__ __forceinline__ float power(float x) { // 2^x
#ifdef EMULATED
  return exp2f(x);
#else
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#endif
}

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

// Copies rows [first, first + TILE) to shared memory. Rows from `count` on become zero.
__device__ __forceinline__ void load_rows(Half (*tile)[PITCH], const Tokens &source, int first, int count) {
  const int parts = HEAD / 8, part = threadIdx.x % parts;
#pragma unroll
  for (int i = threadIdx.x / parts; i < TILE; i += THREADS / parts) {
    uint4 word = make_uint4(0, 0, 0, 0);
    if (first + i < count) word = *reinterpret_cast<const uint4 *>(source.row(first + i) + part * 8);
    *reinterpret_cast<uint4 *>(&tile[i][part * 8]) = word;
  }
}

// Loads rows of the output's gradient, and computes the products of these rows with the rows of the output.
__device__ __forceinline__ void load_gradient(Half (*tile)[PITCH], float *products, const Tokens &gradient,
                                              const Tokens &output, int first, int count) {
  const int parts = HEAD / 8, part = threadIdx.x % parts;
#pragma unroll
  for (int i = threadIdx.x / parts; i < TILE; i += THREADS / parts) {
    uint4 word = make_uint4(0, 0, 0, 0);
    float product = 0.f;
    if (first + i < count) {
      float a[VECTOR], b[VECTOR];
      word = *reinterpret_cast<const uint4 *>(gradient.row(first + i) + part * 8);
      unpack(word, a);
      unpack(*reinterpret_cast<const uint4 *>(output.row(first + i) + part * 8), b);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) product += a[j] * b[j];
    }
    *reinterpret_cast<uint4 *>(&tile[i][part * 8]) = word;
#pragma unroll
    for (int mask = parts / 2; mask > 0; mask /= 2) product += __shfl_xor_sync(0xffffffffu, product, mask);
    if (part == 0) products[i] = product;
  }
}

// The left fragments of the 16 rows of this warp.
__device__ __forceinline__ void load_left(unsigned int (&fragment)[STEPS][4], const Half (*tile)[PITCH]) {
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) load_tiles(fragment[k], &tile[row][k * 16 + lane / 16 * 8], false);
}

// result [16, 16] = left right^T, where right are rows [first, first + 16) of a tile.
__device__ __forceinline__ void compare(float (&result)[2][4], const unsigned int (&left)[STEPS][4],
                                        const Half (*tile)[PITCH], int first) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 2; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) result[n][i] = 0.f;
#pragma unroll
  for (int k = 0; k < STEPS; ++k) {
    unsigned int right[4];
    load_tiles(right, &tile[first + lane / 16 * 8 + lane % 8][k * 16 + lane / 8 % 2 * 8], false);
    multiply_tiles(result[0], left[k], right[0], right[1]);
    multiply_tiles(result[1], left[k], right[2], right[3]);
  }
}

// sum [16, HEAD] += left [16, 16] right, where right are rows [first, first + 16) of a tile. The left matrix is a
// result of `compare`, rounded to 16 bits.
__device__ __forceinline__ void mix(float (&sum)[2 * STEPS][4], const float (&left)[2][4], const Half (*tile)[PITCH],
                                    int first) {
  const int lane = threadIdx.x % 32;
  const unsigned int fragment[4] = {pack_pair(left[0][0], left[0][1]), pack_pair(left[0][2], left[0][3]),
                                    pack_pair(left[1][0], left[1][1]), pack_pair(left[1][2], left[1][3])};
#pragma unroll
  for (int n = 0; n < STEPS; ++n) {
    unsigned int right[4];
    load_tiles(right, &tile[first + lane / 8 % 2 * 8 + lane % 8][n * 16 + lane / 16 * 8], true);
    multiply_tiles(sum[2 * n], fragment, right[0], right[1]);
    multiply_tiles(sum[2 * n + 1], fragment, right[2], right[3]);
  }
}

// Stores the 16 rows of this warp, multiplied by one factor for the upper and one for the lower 8 rows.
__device__ __forceinline__ void store_rows(const Tokens &target, const float (&value)[2 * STEPS][4], float upper,
                                           float lower, int first, int count) {
  const int lane = threadIdx.x % 32, row = first + threadIdx.x / 32 * 16 + lane / 4;
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

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const Half *query, const Half *key, const Half *value, Half *output, const float *bias, const int *order,
              float *logarithms, float scale, int queries, int keys, int heads, int windows, int bias_windows,
              int query_stride, int key_stride, int output_stride) {
  __shared__ __align__(16) Half first_tile[TILE][PITCH], second_tile[TILE][PITCH];
  const int tiles = (queries + TILE - 1) / TILE, tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
  const int sequence = blockIdx.x / tiles / heads, start = tile * TILE, lane = threadIdx.x % 32;
  const int row = start + threadIdx.x / 32 * 16 + lane / 4; // and row + 8
  const Tokens k = tokens(key, order, sequence, windows, keys, key_stride, head);
  const Tokens v = tokens(value, order, sequence, windows, keys, key_stride, head);
  if (bias) bias += (long long)(sequence % bias_windows * heads + head) * queries * keys;

  unsigned int left[STEPS][4];
  load_rows(first_tile, tokens(query, order, sequence, windows, queries, query_stride, head), start, queries);
  __syncthreads();
  load_left(left, first_tile);
  float sum[2 * STEPS][4] = {}, best[2] = {-1e30f, -1e30f}, total[2] = {};
  for (int from = 0; from < keys; from += TILE) {
    __syncthreads();
    load_rows(first_tile, k, from, keys);
    load_rows(second_tile, v, from, keys);
    __syncthreads();
    const int chunks = (min(TILE, keys - from) + 15) / 16;
    float score[TILE / 16][2][4], highest[2] = {best[0], best[1]};
#pragma unroll
    for (int c = 0; c < TILE / 16; ++c) {
      if (c >= chunks) break;
      compare(score[c], left, first_tile, c * 16);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = from + c * 16 + n * 8 + lane % 4 * 2 + i % 2, line = row + i / 2 * 8;
          float s = score[c][n][i] * (scale * LOG2E);
          if (bias && column < keys && line < queries) s += bias[line * keys + column] * LOG2E;
          score[c][n][i] = s = column < keys ? s : -1e30f;
          highest[i / 2] = fmaxf(highest[i / 2], s);
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int mask = 1; mask < 4; mask *= 2)
        highest[half] = fmaxf(highest[half], __shfl_xor_sync(0xffffffffu, highest[half], mask));
      const float shrink = power(best[half] - highest[half]);
      best[half] = highest[half];
      total[half] *= shrink;
#pragma unroll
      for (int n = 0; n < 2 * STEPS; ++n) {
        sum[n][2 * half] *= shrink;
        sum[n][2 * half + 1] *= shrink;
      }
    }
#pragma unroll
    for (int c = 0; c < TILE / 16; ++c) {
      if (c >= chunks) break;
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          score[c][n][i] = power(score[c][n][i] - best[i / 2]);
          total[i / 2] += score[c][n][i];
        }
      mix(sum, score[c], second_tile, c * 16);
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) total[half] += __shfl_xor_sync(0xffffffffu, total[half], mask);
    if (lane % 4 == 0 && row + half * 8 < queries)
      logarithms[(sequence * heads + head) * queries + row + half * 8] = best[half] + log2f(total[half]);
  }
  const Tokens target = tokens(output, order, sequence, windows, queries, output_stride, head);
  store_rows(target, sum, 1.f / total[0], 1.f / total[1], start, queries);
}

// The gradients of keys and values. A block processes a tile of keys.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_key_gradient(const Half *query, const Half *key, const Half *value, const Half *output,
                           const Half *gradient, const float *bias, const int *order, const float *logarithms,
                           Half *dkey, Half *dvalue, float scale, int queries, int keys, int heads, int windows,
                           int bias_windows, int query_stride, int key_stride, int output_stride) {
  __shared__ __align__(16) Half first_tile[TILE][PITCH], second_tile[TILE][PITCH];
  __shared__ float logarithm[TILE], product[TILE];
  const int tiles = (keys + TILE - 1) / TILE, tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
  const int sequence = blockIdx.x / tiles / heads, start = tile * TILE, lane = threadIdx.x % 32;
  const int row = start + threadIdx.x / 32 * 16 + lane / 4; // and row + 8
  const Tokens q = tokens(query, order, sequence, windows, queries, query_stride, head);
  const Tokens o = tokens(output, order, sequence, windows, queries, output_stride, head);
  const Tokens d = tokens(gradient, order, sequence, windows, queries, output_stride, head);
  if (bias) bias += (long long)(sequence % bias_windows * heads + head) * queries * keys;
  logarithms += (sequence * heads + head) * queries;

  unsigned int left_key[STEPS][4], left_value[STEPS][4];
  load_rows(first_tile, tokens(key, order, sequence, windows, keys, key_stride, head), start, keys);
  load_rows(second_tile, tokens(value, order, sequence, windows, keys, key_stride, head), start, keys);
  __syncthreads();
  load_left(left_key, first_tile);
  load_left(left_value, second_tile);
  float key_sum[2 * STEPS][4] = {}, value_sum[2 * STEPS][4] = {};
  for (int from = 0; from < queries; from += TILE) {
    __syncthreads();
    load_rows(first_tile, q, from, queries);
    load_gradient(second_tile, product, d, o, from, queries);
    if (threadIdx.x < TILE)
      logarithm[threadIdx.x] = from + threadIdx.x < queries ? logarithms[from + threadIdx.x] : 0.f;
    __syncthreads();
    const int chunks = (min(TILE, queries - from) + 15) / 16;
    for (int c = 0; c < chunks; ++c) {
      float weight[2][4], slope[2][4]; // of 16 keys and 16 queries
      compare(weight, left_key, first_tile, c * 16);
      compare(slope, left_value, second_tile, c * 16);
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = c * 16 + n * 8 + lane % 4 * 2 + i % 2, line = row + i / 2 * 8;
          const bool used = from + column < queries && line < keys;
          float s = weight[n][i] * (scale * LOG2E);
          if (bias && used) s += bias[(from + column) * keys + line] * LOG2E;
          weight[n][i] = used ? power(s - logarithm[column]) : 0.f;
          slope[n][i] = weight[n][i] * (slope[n][i] - product[column]);
        }
      mix(value_sum, weight, second_tile, c * 16);
      mix(key_sum, slope, first_tile, c * 16);
    }
  }
  const Tokens target = tokens(dkey, order, sequence, windows, keys, key_stride, head);
  store_rows(target, key_sum, scale, scale, start, keys);
  store_rows(tokens(dvalue, order, sequence, windows, keys, key_stride, head), value_sum, 1.f, 1.f, start, keys);
}

// The gradients of queries and, unless `dbias` is null, of the bias. A block processes a tile of queries of every
// parts-th sequence with the same window of the bias, and stores the sum of their gradients of the bias:
// `dbias` is [parts, bias_windows, heads, queries, keys], and keys <= TILE. Without `dbias`, `bias_groups` is the number
// of sequences and a block processes one of them.
extern "C" __global__ void __launch_bounds__(THREADS)
    attention_query_gradient(const Half *query, const Half *key, const Half *value, const Half *output,
                             const Half *gradient, const float *bias, const int *order, const float *logarithms,
                             Half *dquery, float *dbias, float scale, int queries, int keys, int heads, int windows,
                             int bias_windows, int query_stride, int key_stride, int output_stride, int sequences,
                             int bias_groups, int parts) {
  __shared__ __align__(16) Half first_tile[TILE][PITCH], second_tile[TILE][PITCH];
  __shared__ float product[TILE];
  const int tiles = (queries + TILE - 1) / TILE, tile = blockIdx.x % tiles, head = blockIdx.x / tiles % heads;
  const int group = blockIdx.x / tiles / heads % bias_groups, part = blockIdx.x / tiles / heads / bias_groups;
  const int start = tile * TILE, lane = threadIdx.x % 32, own = threadIdx.x / 32 * 16 + lane / 4;
  float bias_sum[TILE / 16][2][4] = {};
  for (int sequence = group + part * bias_groups; sequence < sequences; sequence += parts * bias_groups) {
    const float *biases = bias ? bias + (long long)(sequence % bias_windows * heads + head) * queries * keys : nullptr;
    const Tokens k = tokens(key, order, sequence, windows, keys, key_stride, head);
    const Tokens v = tokens(value, order, sequence, windows, keys, key_stride, head);
    unsigned int left_query[STEPS][4], left_gradient[STEPS][4];
    __syncthreads();
    load_rows(first_tile, tokens(query, order, sequence, windows, queries, query_stride, head), start, queries);
    load_gradient(second_tile, product, tokens(gradient, order, sequence, windows, queries, output_stride, head),
                  tokens(output, order, sequence, windows, queries, output_stride, head), start, queries);
    __syncthreads();
    load_left(left_query, first_tile);
    load_left(left_gradient, second_tile);
    const float products[2] = {product[own], product[own + 8]};
    float logarithm[2];
#pragma unroll
    for (int half = 0; half < 2; ++half)
      logarithm[half] = start + own + half * 8 < queries
                            ? logarithms[(sequence * heads + head) * queries + start + own + half * 8]
                            : 0.f;
    float sum[2 * STEPS][4] = {};
    for (int from = 0; from < keys; from += TILE) {
      __syncthreads();
      load_rows(first_tile, k, from, keys);
      load_rows(second_tile, v, from, keys);
      __syncthreads();
      const int chunks = (min(TILE, keys - from) + 15) / 16;
#pragma unroll
      for (int c = 0; c < TILE / 16; ++c) {
        if (c >= chunks) break;
        float weight[2][4], slope[2][4]; // of 16 queries and 16 keys
        compare(weight, left_query, first_tile, c * 16);
        compare(slope, left_gradient, second_tile, c * 16);
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = from + c * 16 + n * 8 + lane % 4 * 2 + i % 2, line = start + own + i / 2 * 8;
            const bool used = column < keys && line < queries;
            float s = weight[n][i] * (scale * LOG2E);
            if (biases && used) s += biases[line * keys + column] * LOG2E;
            slope[n][i] = used ? power(s - logarithm[i / 2]) * (slope[n][i] - products[i / 2]) : 0.f;
            bias_sum[c][n][i] += slope[n][i];
          }
        mix(sum, slope, first_tile, c * 16);
      }
    }
    const Tokens target = tokens(dquery, order, sequence, windows, queries, query_stride, head);
    store_rows(target, sum, scale, scale, start, queries);
  }
  if (!dbias) return;
  dbias += (long long)((part * bias_groups + group) * heads + head) * queries * keys;
#pragma unroll
  for (int c = 0; c < TILE / 16; ++c)
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = c * 16 + n * 8 + lane % 4 * 2 + i % 2, line = start + own + i / 2 * 8;
        if (column < keys && line < queries) dbias[line * keys + column] = bias_sum[c][n][i];
      }
}
