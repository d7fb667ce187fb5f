// GELU by the error function, and its gradient, for a flat array of vectors. This file is appended to vector.cuh.

#define THREADS 256

// The derivative of GELU.
__device__ __forceinline__ float slope(float value) {
  const float density = 0.39894228f * __expf(-0.5f * value * value);
  return 0.5f + 0.5f * erff(value * 0.70710678f) + value * density;
}

extern "C" __global__ void __launch_bounds__(THREADS) gelu(const uint4 *x, uint4 *y, int count) {
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS) {
    float value[VECTOR];
    unpack(x[index], value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) value[j] *= 0.5f + 0.5f * erff(value[j] * 0.70710678f);
    y[index] = pack(value);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_gradient(const uint4 *dy, const uint4 *x, uint4 *dx, int count) {
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS) {
    float value[VECTOR], gradient[VECTOR];
    unpack(x[index], value);
    unpack(dy[index], gradient);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) gradient[j] *= slope(value[j]);
    dx[index] = pack(gradient);
  }
}

// The same gradient for a matrix [rows, vectors], and the sums of its rows, the gradient of a bias: one row of partial
// sums per blockIdx.y in `partial`. A warp processes 32 adjacent vectors of a row.
extern "C" __global__ void __launch_bounds__(THREADS)
    gelu_bias_gradient(const uint4 *dy, const uint4 *x, uint4 *dx, float *partial, int rows, int vectors) {
  __shared__ float shared[VECTOR][THREADS];
  const int column = blockIdx.x * 32 + threadIdx.x % 32, height = THREADS / 32;
  float sum[VECTOR] = {};
  if (column < vectors)
    for (int row = blockIdx.y * height + threadIdx.x / 32; row < rows; row += gridDim.y * height) {
      float value[VECTOR], gradient[VECTOR];
      unpack(x[row * vectors + column], value);
      unpack(dy[row * vectors + column], gradient);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        gradient[j] *= slope(value[j]);
        sum[j] += gradient[j];
      }
      dx[row * vectors + column] = pack(gradient);
    }
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) shared[j][threadIdx.x] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * VECTOR; i += THREADS) {
    const int lane = i / VECTOR, j = i % VECTOR, vector = blockIdx.x * 32 + lane;
    float total = 0.f;
    for (int y = 0; y < height; ++y) total += shared[j][y * 32 + lane];
    if (vector < vectors) partial[(blockIdx.y * vectors + vector) * VECTOR + j] = total;
  }
}
