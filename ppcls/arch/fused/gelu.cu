// GELU by the error function, and its gradient, for a flat array of vectors. This file is appended to vector.cuh.

#define THREADS 256

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
    for (int j = 0; j < VECTOR; ++j) {
      const float density = 0.39894228f * __expf(-0.5f * value[j] * value[j]);
      gradient[j] *= 0.5f + 0.5f * erff(value[j] * 0.70710678f) + value[j] * density;
    }
    dx[index] = pack(gradient);
  }
}
