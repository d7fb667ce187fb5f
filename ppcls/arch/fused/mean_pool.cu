// The mean of all pixels of NHWC images: forward and backward. This file is appended to vector.cuh.
//
// Images are arrays of vectors, [images, pixels, columns]. The index of a block is (image, part of a pixel). In a block, x
// counts vectors of a pixel, and y counts pixels, so adjacent threads read adjacent vectors. The order of additions is
// fixed.

#define THREADS 512 // threads per block

extern "C" __global__ void __launch_bounds__(THREADS)
    mean_pool(const uint4 *x, uint4 *y, int pixels, int columns) {
  __shared__ float shared[VECTOR * THREADS];
  const int column = blockIdx.y * blockDim.x + threadIdx.x, thread = threadIdx.y * blockDim.x + threadIdx.x;
  const uint4 *image = x + (long long)blockIdx.x * pixels * columns;
  float sum[VECTOR] = {};
  if (column < columns) add_pixels(image, column, threadIdx.y, blockDim.y, pixels, columns, sum);
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) shared[j * THREADS + thread] = sum[j];
  // blockDim.y is a power of two.
  for (int half = blockDim.y / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.y < half)
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) shared[j * THREADS + thread] += shared[j * THREADS + thread + half * blockDim.x];
  }
  if (threadIdx.y != 0 || column >= columns) return;
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) sum[j] = shared[j * THREADS + thread] / pixels;
  y[(long long)blockIdx.x * columns + column] = pack(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    mean_pool_gradient(const uint4 *dy, uint4 *dx, int pixels, int columns) {
  const int column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float value[VECTOR];
  unpack(dy[(long long)blockIdx.x * columns + column], value);
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) value[j] /= pixels;
  const uint4 packed = pack(value);
  uint4 *image = dx + (long long)blockIdx.x * pixels * columns;
  for (int pixel = threadIdx.y; pixel < pixels; pixel += blockDim.y)
    image[(long long)pixel * columns + column] = packed;
}

// The means of squares of `side` pixels that do not overlap. Images are [rows, width, columns].
extern "C" __global__ void __launch_bounds__(THREADS)
    mean_of_squares(const uint4 *x, uint4 *y, int count, int out_width, int width, int columns, int side) {
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) {
    const int column = i % columns, left = i / columns % out_width, top = i / columns / out_width;
    const uint4 *square = x + ((long long)top * side * width + left * side) * columns + column;
    float sum[VECTOR] = {};
    for (int row = 0; row < side; ++row)
      for (int pixel = 0; pixel < side; ++pixel) {
        float value[VECTOR];
        unpack(square[(row * width + pixel) * columns], value);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) sum[j] += value[j];
      }
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) sum[j] /= side * side;
    y[i] = pack(sum);
  }
}
