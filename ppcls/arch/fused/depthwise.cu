// Depthwise convolutions of NHWC images: forward, and the gradients. This file is appended to vector.cuh. NVRTC
// receives KERNEL, the side of the kernel, STRIDE (1 or 2), WIDTH, the number of threads that process adjacent channels,
// and TAIL, the activation of the outputs (a `Tail`, NONE for training).
//
// A thread processes two channels. It keeps the weights of small kernels, or the sums of their gradients, in registers, and
// computes strips of COLUMNS adjacent pixels of a row. Images are arrays of pairs of channels, [batch, height, width, pairs].
// Weights are [KERNEL * KERNEL, channels] float32.

#define THREADS 128
#define COLUMNS 7                                    // images of 224 pixels have sides of 112, 56, 28, 14 and 7
#define INPUTS ((COLUMNS - 1) * STRIDE + KERNEL)     // pixels of a row that a strip depends on
#define SPARSE_COLUMNS 8                             // of a strip of the input's gradient with stride 2
#define SPARSE_INPUTS (SPARSE_COLUMNS / 2 + KERNEL / 2 + 1)

// Two channels of a pixel in memory.
#if ELEMENT == 0
typedef float2 Pair;
__device__ __forceinline__ Pair zeros() { return make_float2(0.f, 0.f); }
__device__ __forceinline__ float2 to_floats(Pair pair) { return pair; }
__device__ __forceinline__ Pair to_pair(float2 value) { return value; }
#else
typedef unsigned int Pair;
__device__ __forceinline__ Pair zeros() { return 0u; }
__device__ __forceinline__ float2 to_floats(Pair pair) {
  float2 value;
  unpack_pair(pair, value.x, value.y);
  return value;
}
__device__ __forceinline__ Pair to_pair(float2 value) { return pack_pair(value.x, value.y); }
#endif

struct Place { // a strip of a row
  int image, row, column;
};

__device__ __forceinline__ Place place(int item, int rows, int strips, int columns) {
  return {item / strips / rows, item / strips % rows, item % strips * columns};
}

// The pair of channels of this thread.
__device__ __forceinline__ int own_pair() { return blockIdx.x * WIDTH + threadIdx.x % WIDTH; }

// The first strip of this thread, and the distance to the next.
__device__ __forceinline__ int first_item() { return blockIdx.y * (THREADS / WIDTH) + threadIdx.x / WIDTH; }
__device__ __forceinline__ int next_item() { return gridDim.y * (THREADS / WIDTH); }

template <int COUNT>
__device__ __forceinline__ void load_pixels(float2 (&pixel)[COUNT], const Pair *row, int first, int width,
                                            int pairs) {
  Pair pair[COUNT];
#pragma unroll
  for (int i = 0; i < COUNT; ++i) pair[i] = first + i >= 0 && first + i < width ? row[(first + i) * pairs] : zeros();
#pragma unroll
  for (int i = 0; i < COUNT; ++i) pixel[i] = to_floats(pair[i]);
}

__device__ __forceinline__ void load_weights(float2 (&weight)[KERNEL * KERNEL], const float *weights, int pair,
                                             int pairs, bool flipped) {
#pragma unroll
  for (int i = 0; i < KERNEL * KERNEL; ++i)
    weight[i] = reinterpret_cast<const float2 *>(weights)[(flipped ? KERNEL * KERNEL - 1 - i : i) * pairs + pair];
}

// Loads the pixels of a strip that a row of the kernel reads; zeros outside the image.
__device__ __forceinline__ void load_row(Pair (&pixel)[INPUTS], const Pair *image, int row, int first, int height,
                                         int width, int pairs) {
  const bool inside = row >= 0 && row < height;
  const Pair *source = image + ((long long)row * width + first) * pairs;
#pragma unroll
  for (int i = 0; i < INPUTS; ++i)
    pixel[i] = inside && first + i >= 0 && first + i < width ? source[i * pairs] : zeros();
}

// y = activation of the convolution of x. With flipped weights and a stride of 1, and no activation, this is also the
// gradient of the input.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise(const Pair *x, const float *weights, const float *bias, Pair *y, int batch, int height, int width,
              int out_height, int out_width, int pairs, int top, int left, int flipped) {
  const int pair = own_pair(), strips = (out_width + COLUMNS - 1) / COLUMNS, items = batch * out_height * strips;
#if KERNEL > 3
  // In registers, the weights of larger kernels would leave room for three blocks per multiprocessor only.
  __shared__ float2 shared[KERNEL * KERNEL * WIDTH];
  for (int i = threadIdx.x; i < KERNEL * KERNEL * WIDTH; i += THREADS) {
    const int tap = i / WIDTH, other = blockIdx.x * WIDTH + i % WIDTH;
    const int source = flipped ? KERNEL * KERNEL - 1 - tap : tap;
    if (other < pairs) shared[i] = reinterpret_cast<const float2 *>(weights)[source * pairs + other];
  }
  __syncthreads();
  const float2 *weight = shared + threadIdx.x % WIDTH;
  const int step = WIDTH;
  if (pair >= pairs) return;
#else
  if (pair >= pairs) return;
  float2 weight[KERNEL * KERNEL];
  load_weights(weight, weights, pair, pairs, flipped);
  const int step = 1;
#endif
  float2 start = make_float2(0.f, 0.f);
  if (bias) start = reinterpret_cast<const float2 *>(bias)[pair];
  for (int item = first_item(); item < items; item += next_item()) {
    const Place at = place(item, out_height, strips, COLUMNS);
    const Pair *image = x + (long long)at.image * height * width * pairs + pair;
    const int row = at.row * STRIDE - top, column = at.column * STRIDE - left;
    float2 sum[COLUMNS];
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i) sum[i] = start;
    Pair next[INPUTS]; // of the next row, which is loaded while this one is multiplied
    load_row(next, image, row, column, height, width, pairs);
#pragma unroll
    for (int i = 0; i < KERNEL; ++i) {
      float2 pixel[INPUTS];
#pragma unroll
      for (int j = 0; j < INPUTS; ++j) pixel[j] = to_floats(next[j]);
      if (i + 1 < KERNEL) load_row(next, image, row + i + 1, column, height, width, pairs);
#pragma unroll
      for (int j = 0; j < KERNEL; ++j) {
        const float2 factor = weight[(i * KERNEL + j) * step];
#pragma unroll
        for (int k = 0; k < COLUMNS; ++k) {
          sum[k].x += pixel[k * STRIDE + j].x * factor.x;
          sum[k].y += pixel[k * STRIDE + j].y * factor.y;
        }
      }
    }
    Pair *output = y + ((long long)(at.image * out_height + at.row) * out_width + at.column) * pairs + pair;
#pragma unroll
    for (int i = 0; i < COLUMNS; ++i)
      if (at.column + i < out_width)
        output[i * pairs] = to_pair(make_float2(activate<TAIL>(sum[i].x), activate<TAIL>(sum[i].y)));
  }
}

#if STRIDE == 2
// dx of a convolution with stride 2. PARITY is left % 2.
template <int PARITY>
__device__ __forceinline__ void input_gradient(const Pair *dy, const float *weights, Pair *dx, int batch,
                                               int height, int width, int out_height, int out_width, int pairs, int top,
                                               int left) {
  const int pair = own_pair(), strips = (width + SPARSE_COLUMNS - 1) / SPARSE_COLUMNS;
  const int items = batch * height * strips;
  if (pair >= pairs) return;
  float2 weight[KERNEL * KERNEL];
  load_weights(weight, weights, pair, pairs, false);
  for (int item = first_item(); item < items; item += next_item()) {
    const Place at = place(item, height, strips, SPARSE_COLUMNS);
    float2 sum[SPARSE_COLUMNS];
#pragma unroll
    for (int i = 0; i < SPARSE_COLUMNS; ++i) sum[i] = make_float2(0.f, 0.f);
#pragma unroll
    for (int i = 0; i < KERNEL; ++i) {
      const int shifted = at.row + top - i;
      if (shifted < 0 || shifted % 2 || shifted / 2 >= out_height) continue;
      // The gradient of column c of the input depends on columns (c + left - j) / 2 of the output.
      const int first = (at.column + left - PARITY) / 2 - KERNEL / 2;
      float2 pixel[SPARSE_INPUTS];
      load_pixels(pixel, dy + ((long long)(at.image * out_height + shifted / 2) * out_width) * pairs + pair, first,
                  out_width, pairs);
#pragma unroll
      for (int j = 0; j < KERNEL; ++j)
#pragma unroll
        for (int k = 0; k < SPARSE_COLUMNS; ++k)
          if ((k + PARITY + j) % 2 == 0) {
            const int source = (k + PARITY - j + 2 * (KERNEL / 2)) / 2;
            sum[k].x += pixel[source].x * weight[i * KERNEL + j].x;
            sum[k].y += pixel[source].y * weight[i * KERNEL + j].y;
          }
    }
    Pair *output = dx + ((long long)(at.image * height + at.row) * width + at.column) * pairs + pair;
#pragma unroll
    for (int i = 0; i < SPARSE_COLUMNS; ++i)
      if (at.column + i < width) output[i * pairs] = to_pair(sum[i]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_input_gradient(const Pair *dy, const float *weights, Pair *dx, int batch, int height,
                             int width, int out_height, int out_width, int pairs, int top, int left) {
  if (left % 2)
    input_gradient<1>(dy, weights, dx, batch, height, width, out_height, out_width, pairs, top, left);
  else
    input_gradient<0>(dy, weights, dx, batch, height, width, out_height, out_width, pairs, top, left);
}
#endif

// Stores the sums of the threads with the same channels of a block: `partial` is [gridDim.y, rows, channels].
__device__ __forceinline__ void store_sum(float2 sum, float *partial, int row, int rows, int pairs) {
  __shared__ float2 shared[THREADS];
  __syncthreads();
  shared[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= WIDTH || own_pair() >= pairs) return;
  for (int i = 1; i < THREADS / WIDTH; ++i) {
    sum.x += shared[i * WIDTH + threadIdx.x].x;
    sum.y += shared[i * WIDTH + threadIdx.x].y;
  }
  reinterpret_cast<float2 *>(partial)[(blockIdx.y * rows + row) * pairs + own_pair()] = sum;
}

// The gradients of weights and bias: `partial` is [gridDim.y, KERNEL * KERNEL + 1, channels]; the last row is the bias.
extern "C" __global__ void __launch_bounds__(THREADS)
    depthwise_weight_gradient(const Pair *x, const Pair *dy, float *partial, int batch, int height,
                              int width, int out_height, int out_width, int pairs, int top, int left) {
  const int pair = own_pair(), strips = (out_width + COLUMNS - 1) / COLUMNS, items = batch * out_height * strips;
  float2 sum[KERNEL * KERNEL], bias = make_float2(0.f, 0.f);
#pragma unroll
  for (int i = 0; i < KERNEL * KERNEL; ++i) sum[i] = make_float2(0.f, 0.f);
  if (pair < pairs)
    for (int item = first_item(); item < items; item += next_item()) {
      const Place at = place(item, out_height, strips, COLUMNS);
      float2 gradient[COLUMNS];
      load_pixels(gradient, dy + ((long long)(at.image * out_height + at.row) * out_width) * pairs + pair, at.column,
                  out_width, pairs);
#pragma unroll
      for (int i = 0; i < COLUMNS; ++i) {
        bias.x += gradient[i].x;
        bias.y += gradient[i].y;
      }
#pragma unroll
      for (int i = 0; i < KERNEL; ++i) {
        const int row = at.row * STRIDE + i - top;
        if (row < 0 || row >= height) continue;
        float2 pixel[INPUTS];
        load_pixels(pixel, x + ((long long)(at.image * height + row) * width) * pairs + pair,
                    at.column * STRIDE - left, width, pairs);
#pragma unroll
        for (int j = 0; j < KERNEL; ++j)
#pragma unroll
          for (int k = 0; k < COLUMNS; ++k) {
            sum[i * KERNEL + j].x += pixel[k * STRIDE + j].x * gradient[k].x;
            sum[i * KERNEL + j].y += pixel[k * STRIDE + j].y * gradient[k].y;
          }
      }
    }
#pragma unroll
  for (int i = 0; i < KERNEL * KERNEL; ++i) store_sum(sum[i], partial, i, KERNEL * KERNEL + 1, pairs);
  store_sum(bias, partial, KERNEL * KERNEL, KERNEL * KERNEL + 1, pairs);
}
