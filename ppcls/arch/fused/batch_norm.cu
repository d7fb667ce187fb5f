// BatchNorm of NHWC images with an optional addition and ReLU: forward and backward for training, and forward with
// running statistics for evaluation. This file is appended to vector.cuh.
//
// An image batch is a matrix [rows, channels] with one row per pixel. A thread handles the same 16 bytes (VECTOR
// channels) of every stride-th row, so it keeps the channels' factors in registers. Blocks are two-dimensional:
// x counts columns of 16 bytes, y counts rows.
//
// The first kernel of each direction reads the rows in descending order, and the second kernel reads them in
// ascending order. Each kernel therefore starts with rows that are still in the L2 cache: the rows that the
// convolution wrote last, or that the first kernel read last.

#define THREADS 512 // maximum number of threads per block
#define UNROLL 4    // rows that a thread loads before it uses them

__device__ __forceinline__ void load(const float *source, int column, float *value) {
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) value[i] = source[column * VECTOR + i];
}

// Adds up two sums per channel over all blocks. Returns whether this thread holds the total of `channel`. For each
// channel, exactly one thread of the last block to finish holds the total. The order of additions is fixed.
__device__ bool total(const float (&first)[VECTOR], const float (&second)[VECTOR], int columns, float *partial,
                      unsigned int *arrived, int &channel, float &a, float &b) {
  __shared__ float shared[2 * VECTOR * THREADS];
  __shared__ bool last;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, threads = blockDim.x * blockDim.y;
  const int channels = columns * VECTOR, width = blockDim.x * VECTOR;
#pragma unroll
  for (int i = 0; i < VECTOR; ++i) {
    shared[i * THREADS + thread] = first[i];
    shared[(VECTOR + i) * THREADS + thread] = second[i];
  }
  __syncthreads();
  for (int i = thread; i < 2 * width; i += threads) {
    const int value = i / blockDim.x, x = i % blockDim.x, column = blockIdx.x * blockDim.x + x;
    float sum = 0.f;
    for (int y = 0; y < blockDim.y; ++y) sum += shared[value * THREADS + y * blockDim.x + x];
    const int which = value / VECTOR;
    if (column < columns)
      partial[(which * gridDim.y + blockIdx.y) * channels + column * VECTOR + value % VECTOR] = sum;
  }
  __threadfence();
  __syncthreads();
  if (thread == 0) last = atomicAdd(&arrived[blockIdx.x], 1u) == gridDim.y - 1;
  __syncthreads();
  if (!last) return false;
  __threadfence();
  if (thread == 0) arrived[blockIdx.x] = 0; // for the next launch
  const int parts = threads / width, part = thread / width, local = thread % width;
  channel = blockIdx.x * width + local;
  a = b = 0.f;
  if (part < parts && channel < channels)
#pragma unroll 4
    for (int y = part; y < gridDim.y; y += parts) {
      a += __ldcg(&partial[y * channels + channel]);
      b += __ldcg(&partial[(gridDim.y + y) * channels + channel]);
    }
  shared[thread] = a;
  shared[THREADS + thread] = b;
  __syncthreads();
  if (part != 0 || channel >= channels) return false;
  for (int i = 1; i < parts; ++i) {
    a += shared[i * width + local];
    b += shared[THREADS + i * width + local];
  }
  return true;
}

// Computes the statistics of a batch, and from these the factors of `normalize`: y = x * scale + bias.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    statistics(const uint4 *x, const float *gamma, const float *beta, float *running_mean, float *running_variance,
               float momentum, float epsilon, float *saved, float *partial, unsigned int *arrived, int rows,
               int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.y * blockDim.y;
  // Subtract the first row from all values, so that the variance is not a difference of large numbers.
  float sum[VECTOR] = {}, square[VECTOR] = {}, shift[VECTOR];
  if (column < columns) {
    unpack(x[column], shift);
    for (int row = rows - 1 - (blockIdx.y * blockDim.y + threadIdx.y); row >= 0; row -= UNROLL * stride) {
      uint4 packed[UNROLL];
#pragma unroll
      for (int i = 0; i < UNROLL; ++i)
        if (row - i * stride >= 0) packed[i] = x[(row - i * stride) * columns + column];
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        if (row - i * stride < 0) break;
        float value[VECTOR];
        unpack(packed[i], value);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
          const float shifted = value[j] - shift[j];
          sum[j] += shifted;
          square[j] += shifted * shifted;
        }
      }
    }
  }
  int channel;
  float a, b;
  if (!total(sum, square, columns, partial, arrived, channel, a, b)) return;
  const int channels = columns * VECTOR;
  float origin[VECTOR];
  unpack(x[channel / VECTOR], origin);
  float offset = origin[0];
#pragma unroll
  for (int j = 1; j < VECTOR; ++j) offset = channel % VECTOR == j ? origin[j] : offset;
  const float shifted = a / rows, mean = offset + shifted;
  const float variance = fmaxf(b / rows - shifted * shifted, 0.f) + 0.f * b; // non-finite if the sum is non-finite
  const float inverse = rsqrtf(variance + epsilon), scale = gamma[channel] * inverse;
  saved[channel] = scale;
  saved[channels + channel] = beta[channel] - mean * scale;
  saved[2 * channels + channel] = mean;
  saved[3 * channels + channel] = inverse;
  running_mean[channel] = momentum * running_mean[channel] + (1.f - momentum) * mean;
  running_variance[channel] = momentum * running_variance[channel] + (1.f - momentum) * variance;
}

// The gradient of a normalized value, from that of its activation.
template <Tail TAIL> __device__ __forceinline__ float activation_gradient(float gradient, float value) {
  if (TAIL == RELU) return value <= 0.f ? 0.f : gradient;
  if (TAIL == HARD_SWISH) return value <= -3.f ? 0.f : value >= 3.f ? gradient : gradient * (value * (1.f / 3.f) + 0.5f);
  if (TAIL == SWISH) {
    const float gate = sigmoid(value);
    return gradient * gate * (1.f + value * (1.f - gate));
  }
  return gradient;
}

// Computes y = relu(x * scale + bias + z), without z or with another activation if TAIL says so. NaN stays NaN.
// `pitch` is the number of vectors from one row of x to the next; other matrices have `columns`.
// With a shortcut, `mask` receives one byte per vector, unless it is null. A bit is 1 if ReLU passes the gradient of
// that value.
template <Tail TAIL>
__device__ __forceinline__ void normalize(const uint4 *x, const uint4 *z, uint4 *y, unsigned char *mask,
                                          const float (&scale)[VECTOR], const float (&bias)[VECTOR], int column,
                                          int pitch, int rows, int columns) {
  const int stride = gridDim.y * blockDim.y;
  for (int row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += UNROLL * stride) {
    uint4 inputs[UNROLL], addends[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
      if (row + i * stride < rows) {
        inputs[i] = x[(row + i * stride) * pitch + column];
        if (TAIL == ADD_RELU) addends[i] = z[(row + i * stride) * columns + column];
      }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (row + i * stride >= rows) break;
      const int index = (row + i * stride) * columns + column;
      float value[VECTOR], addend[VECTOR];
      unpack(inputs[i], value);
      if (TAIL == ADD_RELU) unpack(addends[i], addend);
      unsigned int bits = 0;
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        value[j] = value[j] * scale[j] + bias[j];
        if (TAIL == ADD_RELU) value[j] += addend[j];
        if (TAIL == RELU || TAIL == ADD_RELU) bits |= (unsigned int)passes_relu(value[j]) << j;
        value[j] = activate<TAIL>(value[j]);
      }
      y[index] = pack(value);
      if (TAIL == ADD_RELU && mask) mask[index] = bits;
    }
  }
}

template <Tail TAIL>
__device__ __forceinline__ void normalize_batch(const uint4 *x, const uint4 *z, uint4 *y, unsigned char *mask,
                                                const float *saved, int rows, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float scale[VECTOR], bias[VECTOR];
  load(saved, column, scale);
  load(saved + columns * VECTOR, column, bias);
  normalize<TAIL>(x, z, y, mask, scale, bias, column, columns, rows, columns);
}

template <Tail TAIL>
__device__ __forceinline__ void normalize_running(const uint4 *x, const uint4 *z, uint4 *y, const float *gamma,
                                                  const float *beta, const float *running_mean,
                                                  const float *running_variance, float epsilon, int pitch, int rows,
                                                  int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float scale[VECTOR], bias[VECTOR], mean[VECTOR], variance[VECTOR];
  load(gamma, column, scale);
  load(beta, column, bias);
  load(running_mean, column, mean);
  load(running_variance, column, variance);
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) {
    scale[j] *= rsqrtf(variance[j] + epsilon);
    bias[j] -= mean[j] * scale[j];
  }
  normalize<TAIL>(x, z, y, nullptr, scale, bias, column, pitch, rows, columns);
}

// Computes the gradients of gamma and beta, and from these the factors of `input_gradient`. With a shortcut, `dz`
// receives the gradient that passes ReLU, which is the gradient of the shortcut.
template <Tail TAIL>
__device__ __forceinline__ void parameter_gradients(const uint4 *dy, const uint4 *x, const unsigned char *mask,
                                                    uint4 *dz, const float *saved, float *dgamma, float *dbeta,
                                                    float *factors, float *partial, unsigned int *arrived, int rows,
                                                    int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.y * blockDim.y;
  const int channels = columns * VECTOR;
  float sum[VECTOR] = {}, product[VECTOR] = {};
  if (column < columns) {
    float scale[VECTOR], bias[VECTOR], mean[VECTOR];
    load(saved, column, scale);
    load(saved + channels, column, bias);
    load(saved + 2 * channels, column, mean);
    for (int row = rows - 1 - (blockIdx.y * blockDim.y + threadIdx.y); row >= 0; row -= UNROLL * stride) {
      uint4 gradients[UNROLL], inputs[UNROLL];
      unsigned char bits[UNROLL];
#pragma unroll
      for (int i = 0; i < UNROLL; ++i)
        if (row - i * stride >= 0) {
          gradients[i] = dy[(row - i * stride) * columns + column];
          inputs[i] = x[(row - i * stride) * columns + column];
          if (TAIL == ADD_RELU) bits[i] = mask[(row - i * stride) * columns + column];
        }
#pragma unroll
      for (int i = 0; i < UNROLL; ++i) {
        if (row - i * stride < 0) break;
        float gradient[VECTOR], input[VECTOR];
        unpack(gradients[i], gradient);
        unpack(inputs[i], input);
#pragma unroll
        for (int j = 0; j < VECTOR; ++j) {
          if (TAIL == ADD_RELU) gradient[j] = bits[i] >> j & 1 ? gradient[j] : 0.f;
          gradient[j] = activation_gradient<TAIL>(gradient[j], input[j] * scale[j] + bias[j]);
          sum[j] += gradient[j];
          product[j] += gradient[j] * (input[j] - mean[j]);
        }
        if (TAIL == ADD_RELU) dz[(row - i * stride) * columns + column] = pack(gradient);
      }
    }
  }
  int channel;
  float a, b;
  if (!total(sum, product, columns, partial, arrived, channel, a, b)) return;
  const float scale = saved[channel], mean = saved[2 * channels + channel], inverse = saved[3 * channels + channel];
  dbeta[channel] = a;
  dgamma[channel] = b * inverse;
  const float slope = -scale * inverse * inverse * b / rows;
  factors[channel] = slope;
  factors[channels + channel] = -scale * a / rows - slope * mean;
}

// Computes dx = gradient * scale + x * slope + offset, where the gradient is that of the normalized value.
template <Tail TAIL>
__device__ __forceinline__ void input_gradient(const uint4 *dy, const uint4 *x, uint4 *dx, const float *saved,
                                               const float *factors, int rows, int columns) {
  const int column = blockIdx.x * blockDim.x + threadIdx.x, stride = gridDim.y * blockDim.y;
  const int channels = columns * VECTOR;
  if (column >= columns) return;
  float scale[VECTOR], bias[VECTOR], slope[VECTOR], offset[VECTOR];
  load(saved, column, scale);
  load(saved + channels, column, bias);
  load(factors, column, slope);
  load(factors + channels, column, offset);
  for (int row = blockIdx.y * blockDim.y + threadIdx.y; row < rows; row += UNROLL * stride) {
    uint4 gradients[UNROLL], inputs[UNROLL];
#pragma unroll
    for (int i = 0; i < UNROLL; ++i)
      if (row + i * stride < rows) {
        gradients[i] = dy[(row + i * stride) * columns + column];
        inputs[i] = x[(row + i * stride) * columns + column];
      }
#pragma unroll
    for (int i = 0; i < UNROLL; ++i) {
      if (row + i * stride >= rows) break;
      float gradient[VECTOR], input[VECTOR];
      unpack(gradients[i], gradient);
      unpack(inputs[i], input);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) {
        gradient[j] = activation_gradient<TAIL>(gradient[j], input[j] * scale[j] + bias[j]);
        gradient[j] = gradient[j] * scale[j] + input[j] * slope[j] + offset[j];
      }
      dx[(row + i * stride) * columns + column] = pack(gradient);
    }
  }
}

// The kernels for each tail.
#define KERNELS(tail, TAIL)                                                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
      normalize_##tail(const uint4 *x, const uint4 *z, uint4 *y, unsigned char *mask, const float *saved, int rows,    \
                       int columns) {                                                                                  \
    normalize_batch<TAIL>(x, z, y, mask, saved, rows, columns);                                                        \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
      normalize_running_##tail(const uint4 *x, const uint4 *z, uint4 *y, const float *gamma, const float *beta,        \
                               const float *running_mean, const float *running_variance, float epsilon, int pitch,     \
                               int rows, int columns) {                                                                \
    normalize_running<TAIL>(x, z, y, gamma, beta, running_mean, running_variance, epsilon, pitch, rows, columns);      \
  }                                                                                                                    \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
      parameter_gradients_##tail(const uint4 *dy, const uint4 *x, const unsigned char *mask, uint4 *dz,                \
                                 const float *saved, float *dgamma, float *dbeta, float *factors, float *partial,      \
                                 unsigned int *arrived, int rows, int columns) {                                       \
    parameter_gradients<TAIL>(dy, x, mask, dz, saved, dgamma, dbeta, factors, partial, arrived, rows, columns);        \
  }

KERNELS(none, NONE)
KERNELS(relu, RELU)
KERNELS(add_relu, ADD_RELU)
KERNELS(hard_swish, HARD_SWISH)
KERNELS(swish, SWISH)

#define INPUT_GRADIENT(tail, TAIL)                                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS, 1)                                                             \
      input_gradient_##tail(const uint4 *dy, const uint4 *x, uint4 *dx, const float *saved, const float *factors,      \
                            int rows, int columns) {                                                                   \
    input_gradient<TAIL>(dy, x, dx, saved, factors, rows, columns);                                                    \
  }

INPUT_GRADIENT(none, NONE)
INPUT_GRADIENT(relu, RELU)
INPUT_GRADIENT(hard_swish, HARD_SWISH)
INPUT_GRADIENT(swish, SWISH)

// Copies a matrix [rows, columns] to the columns from `first` on of a matrix with `pitch` columns.
extern "C" __global__ void __launch_bounds__(THREADS)
    append(const uint4 *x, uint4 *y, int first, int pitch, int rows, int columns) {
  const int count = rows * columns, threads = blockDim.x * blockDim.y;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x, block = blockIdx.y * gridDim.x + blockIdx.x;
  for (int i = block * threads + thread; i < count; i += gridDim.x * gridDim.y * threads)
    y[i / columns * pitch + first + i % columns] = x[i];
}
