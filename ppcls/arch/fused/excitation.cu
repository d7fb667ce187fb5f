// Squeeze-and-excitation without gradients: the gates of the channels, and their product with the images. This file is
// appended to vector.cuh. NVRTC receives ACT, the activation between the two layers (a `Tail`).

#define THREADS 256       // of a block that multiplies
#define GATE_THREADS 1024 // of a block that computes gates; fewer threads would wait for the weights most of the time
#define WARPS (GATE_THREADS / 32)
#define UNROLL 4 // pixels that a thread loads before it uses them

#ifdef EMULATED
#define SHARED() reinterpret_cast<float *>(dynamic_shared)
#else
#define SHARED() shared_memory()
__device__ __forceinline__ float *shared_memory() {
  extern __shared__ float numbers[];
  return numbers;
}
#endif

#if ELEMENT != 0
// Computes the means of an image's channels with all threads of a block. `sums` has VECTOR * GATE_THREADS numbers.
__device__ __forceinline__ void means_of(const uint4 *image, int pixels, int columns, float *sums, float *mean) {
  const int thread = threadIdx.x, column = thread % columns, part = thread / columns, parts = GATE_THREADS / columns;
  float sum[VECTOR] = {};
  if (part < parts) add_pixels(image, column, part, parts, pixels, columns, sum);
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) sums[j * GATE_THREADS + thread] = sum[j];
  for (int rows = parts; rows > 1;) { // the first half of the parts adds the second half
    const int half = (rows + 1) / 2;
    __syncthreads();
    if (part < rows - half)
#pragma unroll
      for (int j = 0; j < VECTOR; ++j)
        sums[j * GATE_THREADS + thread] += sums[j * GATE_THREADS + thread + half * columns];
    rows = half;
  }
  __syncthreads();
  if (part == 0)
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) mean[column * VECTOR + j] = sums[j * GATE_THREADS + thread] / pixels;
}

// The gates of an image per block: gate(second(act(first(means)))), where a layer adds a bias to a product with a matrix.
// `first` is [squeezed, channels], and `second` is [squeezed, channels / 2] pairs, so that adjacent threads read adjacent
// numbers of both. With a slope, the gate is min(max(slope * x + offset, 0), 1), otherwise the sigmoid function.
extern "C" __global__ void __launch_bounds__(GATE_THREADS)
    gates(const uint4 *x, const uint4 *first, const float *first_bias, const unsigned int *second,
          const float2 *second_bias, unsigned int *gate, int pixels, int channels, int squeezed, float slope,
          float offset) {
  float *sums = SHARED(), *mean = sums + VECTOR * GATE_THREADS, *hidden = mean + channels;
  float2 *partial = reinterpret_cast<float2 *>(sums); // used after the sums
  const int thread = threadIdx.x, lane = thread % 32, columns = channels / VECTOR, pairs = channels / 2;
  means_of(x + (long long)blockIdx.x * pixels * columns, pixels, columns, sums, mean);
  __syncthreads();
  for (int row = thread / 32; row < squeezed; row += WARPS) {
    float sum = 0.f;
#pragma unroll 4
    for (int i = lane; i < columns; i += 32) {
      float weight[VECTOR];
      unpack(first[row * columns + i], weight);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) sum += weight[j] * mean[i * VECTOR + j];
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (lane == 0) hidden[row] = activate<ACT>(sum + first_bias[row]);
  }
  __syncthreads();
  // Several threads share the rows of a pair if there are fewer pairs than threads.
  const int parts = pairs < GATE_THREADS ? GATE_THREADS / pairs : 1, part = thread / pairs;
  for (int begin = 0; begin < pairs; begin += GATE_THREADS) {
    const int pair = parts > 1 ? thread % pairs : begin + thread;
    float2 sum = make_float2(0.f, 0.f);
    if (pair < pairs && (parts == 1 || part < parts))
#pragma unroll 8
      for (int row = parts > 1 ? part : 0; row < squeezed; row += parts) {
        float low, high;
        unpack_pair(second[row * pairs + pair], low, high);
        sum.x += hidden[row] * low;
        sum.y += hidden[row] * high;
      }
    __syncthreads(); // the others have read the previous sums
    partial[thread] = sum;
    __syncthreads();
    if (pair >= pairs || (parts > 1 && part > 0)) continue;
    for (int i = 1; i < parts; ++i) {
      sum.x += partial[i * pairs + pair].x;
      sum.y += partial[i * pairs + pair].y;
    }
    float value[2] = {sum.x + second_bias[pair].x, sum.y + second_bias[pair].y};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float line = slope * value[i] + offset;
      // NaN stays NaN, which fminf and fmaxf would replace.
      value[i] = slope == 0.f ? sigmoid(value[i]) : line <= 0.f ? 0.f : line >= 1.f ? 1.f : line;
    }
    gate[blockIdx.x * pairs + pair] = pack_pair(value[0], value[1]);
  }
}
#endif

// y = x * gate. Images are [images, pixels, columns], gates are [images, columns]. The index of a block is (image, part of a
// pixel, part of the pixels). In a block, x counts vectors of a pixel, and y counts pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
    multiply(const uint4 *x, const uint4 *gate, uint4 *y, int pixels, int columns) {
  const int column = blockIdx.y * blockDim.x + threadIdx.x, stride = blockDim.y * gridDim.z;
  if (column >= columns) return;
  float factor[VECTOR];
  unpack(gate[blockIdx.x * columns + column], factor);
  const long long image = (long long)blockIdx.x * pixels * columns;
  for (int first = blockIdx.z * blockDim.y + threadIdx.y; first < pixels; first += UNROLL * stride) {
    uint4 packed[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
      if (first + i * stride < pixels) packed[i] = x[image + (long long)(first + i * stride) * columns + column];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (first + i * stride >= pixels) break;
      float value[VECTOR];
      unpack(packed[i], value);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) value[j] *= factor[j];
      y[image + (long long)(first + i * stride) * columns + column] = pack(value);
    }
  }
}
