// Layer norm of tokens, and the sums of a residual network around it. This file is appended to vector.cuh.
//
// Tokens are a matrix [rows, channels]. LANES threads of a warp process a row, and each of them keeps CHUNKS vectors of
// the row in registers, so that every tensor is read once. NVRTC receives LANES and CHUNKS for a number of channels,
// and STREAM: 0 if the residual stream (x, sum, dx) has the type of the vectors, 1 if it is float32.
//
// `factors` has one number per image, by which stochastic depth multiplies the branch of a residual block, and `scale`
// has one number per channel (layer scale). Each of them is null if it is not used.

#define THREADS 256

struct Row { // the part of a row that a thread keeps
  float value[CHUNKS][VECTOR];
};

__device__ __forceinline__ int lane() { return threadIdx.x % LANES; }

__device__ __forceinline__ void load_stream(const void *source, int index, float *value) {
#if STREAM && ELEMENT
  const float4 *words = reinterpret_cast<const float4 *>(source) + 2 * index;
  const float4 first = words[0], second = words[1];
  value[0] = first.x, value[1] = first.y, value[2] = first.z, value[3] = first.w;
  value[4] = second.x, value[5] = second.y, value[6] = second.z, value[7] = second.w;
#else
  unpack(reinterpret_cast<const uint4 *>(source)[index], value);
#endif
}

__device__ __forceinline__ void store_stream(void *target, int index, const float *value) {
#if STREAM && ELEMENT
  float4 *words = reinterpret_cast<float4 *>(target) + 2 * index;
  words[0] = make_float4(value[0], value[1], value[2], value[3]);
  words[1] = make_float4(value[4], value[5], value[6], value[7]);
#else
  reinterpret_cast<uint4 *>(target)[index] = pack(value);
#endif
}

__device__ __forceinline__ void load_channels(const float *source, int column, float *value) {
#pragma unroll
  for (int j = 0; j < VECTOR; j += 4) {
    const float4 word = reinterpret_cast<const float4 *>(source)[(column * VECTOR + j) / 4];
    value[j] = word.x, value[j + 1] = word.y, value[j + 2] = word.z, value[j + 3] = word.w;
  }
}

// Returns the sum over the threads of a row.
__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
  for (int mask = LANES / 2; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}

// Adds a branch to x: sum = x + factor * scale * branch. Then y is the layer norm of the sum. Without a branch, y is the
// layer norm of x, and `sum` is not written.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm(const void *x, const uint4 *branch, const float *factors, const float *scale, const float *weight,
               const float *bias, void *sum, uint4 *y, float *mean, float *inverse, float epsilon, int rows, int vectors,
               int image_rows) {
  const int row = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
  const bool used = row < rows;
  Row data;
  float total = 0.f;
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i) {
    const int column = lane() + i * LANES, index = row * vectors + column;
    if (used && column < vectors) {
      load_stream(x, index, data.value[i]);
      if (branch) {
        float addend[VECTOR], factor[VECTOR];
        unpack(branch[index], addend);
        const float whole = factors ? factors[row / image_rows] : 1.f;
        if (scale) load_channels(scale, column, factor);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) data.value[i][j] += addend[j] * (scale ? whole * factor[j] : whole);
        store_stream(sum, index, data.value[i]);
      }
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) total += data.value[i][j];
    } else {
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) data.value[i][j] = 0.f;
    }
  }
  const float center = row_sum(total) / (vectors * VECTOR);
  float squares = 0.f;
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i)
    if (lane() + i * LANES < vectors)
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        const float distance = data.value[i][j] - center;
        squares += distance * distance;
      }
  const float deviation = rsqrtf(row_sum(squares) / (vectors * VECTOR) + epsilon);
  if (!used) return;
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i) {
    const int column = lane() + i * LANES;
    if (column >= vectors) break;
    float gamma[VECTOR], beta[VECTOR], output[VECTOR];
    load_channels(weight, column, gamma);
    load_channels(bias, column, beta);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) output[j] = (data.value[i][j] - center) * deviation * gamma[j] + beta[j];
    y[row * vectors + column] = pack(output);
  }
  if (lane() == 0) {
    mean[row] = center;
    inverse[row] = deviation;
  }
}

// Adds up sums of channels over the rows of a block, and stores them in the row blockIdx.x of `partial`.
__device__ __forceinline__ void store_sums(const Row &sums, float *partial, int vectors) {
  __shared__ float shared[THREADS * VECTOR];
  for (int i = 0; i < CHUNKS; ++i) {
    __syncthreads();
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) shared[j * THREADS + threadIdx.x] = sums.value[i][j];
    __syncthreads();
    for (int k = threadIdx.x; k < LANES * VECTOR; k += THREADS) {
      const int column = k / VECTOR + i * LANES;
      float total = 0.f;
      for (int r = 0; r < THREADS / LANES; ++r) total += shared[k % VECTOR * THREADS + r * LANES + k / VECTOR];
      if (column < vectors) partial[blockIdx.x * vectors * VECTOR + column * VECTOR + k % VECTOR] = total;
    }
  }
}

// The gradients of `layer_norm`. `dsum` is the gradient of the sum from its other consumers, or null. `dx` receives the
// gradient of x. The gradient of a branch is factor * scale * dx; `dbranch` receives it unless it is null. `dweight`
// and `dbias` receive one row of partial sums per block.
extern "C" __global__ void __launch_bounds__(THREADS)
    layer_norm_gradient(const uint4 *dy, const void *x, const void *dsum, const float *mean, const float *inverse,
                        const float *weight, const float *factors, const float *scale, void *dx, uint4 *dbranch,
                        float *dweight, float *dbias, int rows, int vectors, int image_rows) {
  Row weights, biases;
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i)
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) weights.value[i][j] = biases.value[i][j] = 0.f;
  const int height = THREADS / LANES;
  for (int first = blockIdx.x * height; first < rows; first += gridDim.x * height) {
    const int row = first + threadIdx.x / LANES;
    const bool used = row < rows;
    const float center = used ? mean[row] : 0.f, deviation = used ? inverse[row] : 0.f;
    Row normal, slope;
    float total = 0.f, product = 0.f;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const int column = lane() + i * LANES, index = row * vectors + column;
      if (used && column < vectors) {
        float gradient[VECTOR], gamma[VECTOR];
        load_stream(x, index, normal.value[i]);
        unpack(dy[index], gradient);
        load_channels(weight, column, gamma);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
          normal.value[i][j] = (normal.value[i][j] - center) * deviation;
          weights.value[i][j] += gradient[j] * normal.value[i][j];
          biases.value[i][j] += gradient[j];
          slope.value[i][j] = gradient[j] * gamma[j];
          total += slope.value[i][j];
          product += slope.value[i][j] * normal.value[i][j];
        }
      }
    }
    total = row_sum(total) / (vectors * VECTOR);
    product = row_sum(product) / (vectors * VECTOR);
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const int column = lane() + i * LANES, index = row * vectors + column;
      if (!used || column >= vectors) break;
      float result[VECTOR];
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) result[j] = 0.f;
      if (dsum) load_stream(dsum, index, result);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j)
        result[j] += deviation * (slope.value[i][j] - total - normal.value[i][j] * product);
      store_stream(dx, index, result);
      if (dbranch) {
        float factor[VECTOR];
        const float whole = factors ? factors[row / image_rows] : 1.f;
        if (scale) load_channels(scale, column, factor);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) result[j] *= scale ? whole * factor[j] : whole;
        dbranch[index] = pack(result);
      }
    }
  }
  store_sums(weights, dweight, vectors);
  store_sums(biases, dbias, vectors);
}

// sum = x + factor * scale * (branch + bias)
extern "C" __global__ void __launch_bounds__(THREADS)
    add_branch(const void *x, const uint4 *branch, const float *factors, const float *scale, const float *bias,
               void *sum, int count, int vectors, int image_rows) {
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS) {
    float value[VECTOR], addend[VECTOR], factor[VECTOR];
    load_stream(x, index, value);
    unpack(branch[index], addend);
    const float whole = factors ? factors[index / vectors / image_rows] : 1.f;
    if (bias) {
      float shift[VECTOR];
      load_channels(bias, index % vectors, shift);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) addend[j] += shift[j];
    }
    if (scale) load_channels(scale, index % vectors, factor);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) value[j] += addend[j] * (scale ? whole * factor[j] : whole);
    store_stream(sum, index, value);
  }
}

// The gradients of `add_branch` other than that of x: dbranch = factor * scale * dsum, and one row of partial sums per
// block: in `dscale` of factor * (branch + bias) * dsum, in `dbias` of factor * dsum, unless they are null. The latter
// is the gradient of the bias without the factor `scale`, which may be too small for half precision.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_branch_gradient(const void *dsum, const uint4 *branch, const float *factors, const float *scale,
                        const float *bias, uint4 *dbranch, float *dscale, float *dbias, int rows, int vectors,
                        int image_rows) {
  Row scales, biases;
#pragma unroll
  for (int i = 0; i < CHUNKS; ++i)
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) scales.value[i][j] = biases.value[i][j] = 0.f;
  const int height = THREADS / LANES;
  for (int row = blockIdx.x * height + threadIdx.x / LANES; row < rows; row += gridDim.x * height) {
    const float whole = factors ? factors[row / image_rows] : 1.f;
#pragma unroll
    for (int i = 0; i < CHUNKS; ++i) {
      const int column = lane() + i * LANES, index = row * vectors + column;
      if (column >= vectors) break;
      float gradient[VECTOR], value[VECTOR], factor[VECTOR], shift[VECTOR];
      load_stream(dsum, index, gradient);
      if (dscale) unpack(branch[index], value);
      if (scale) load_channels(scale, column, factor);
      if (bias) load_channels(bias, column, shift);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        gradient[j] *= whole;
        if (dscale) scales.value[i][j] += gradient[j] * (bias ? value[j] + shift[j] : value[j]);
        if (dbias) biases.value[i][j] += gradient[j];
        gradient[j] *= scale ? factor[j] : 1.f;
      }
      dbranch[index] = pack(gradient);
    }
  }
  if (dscale) store_sums(scales, dscale, vectors);
  if (dbias) store_sums(biases, dbias, vectors);
}
