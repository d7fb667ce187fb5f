// The sum of the rows of a matrix. This file is appended to vector.cuh.

#define THREADS 256

// Adds up the rows of `partial`, [rows, columns] float32. A block adds up 32 columns.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows(const float *partial, float *result, int rows, int columns) {
  __shared__ float shared[THREADS];
  const int column = blockIdx.x * 32 + threadIdx.x % 32;
  float total = 0.f;
  if (column < columns)
    for (int row = threadIdx.x / 32; row < rows; row += THREADS / 32) total += partial[row * columns + column];
  shared[threadIdx.x] = total;
  __syncthreads();
  if (threadIdx.x >= 32 || column >= columns) return;
  for (int i = 1; i < THREADS / 32; ++i) total += shared[i * 32 + threadIdx.x];
  result[column] = total;
}
