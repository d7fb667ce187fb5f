// Updates of flat weights by AdamW and by SGD with momentum, and what precedes them. This file is appended to
// vector.cuh; ELEMENT is the type of weights and gradients. `master` is null for float32 weights; otherwise it holds
// the float32 weights, whose rounded values the update stores in `weight`. All counts are numbers of vectors.
//
// Gradients are multiplied by multiplier[0], the inverse of the loss scale times the factor of gradient clipping.
// Nothing changes if overflow[0] is 1; overflow may be null.

#define THREADS 256

__device__ __forceinline__ void load_floats(const float *source, int index, float *value) {
#pragma unroll
  for (int j = 0; j < VECTOR; j += 4) {
    const float4 word = reinterpret_cast<const float4 *>(source)[(index * VECTOR + j) / 4];
    value[j] = word.x, value[j + 1] = word.y, value[j + 2] = word.z, value[j + 3] = word.w;
  }
}

__device__ __forceinline__ void store_floats(float *target, int index, const float *value) {
#pragma unroll
  for (int j = 0; j < VECTOR; j += 4)
    reinterpret_cast<float4 *>(target)[(index * VECTOR + j) / 4] =
        make_float4(value[j], value[j + 1], value[j + 2], value[j + 3]);
}

// Returns the sum over the threads of a block; only the result of thread 0 is complete.
__device__ __forceinline__ float block_sum(float value) {
  __shared__ float shared[THREADS / 32];
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0)
    for (int i = 1; i < THREADS / 32; ++i) value += shared[i];
  return value;
}

// partial[block] = sum of the squares of gradients
extern "C" __global__ void __launch_bounds__(THREADS) sum_squares(const uint4 *gradient, float *partial, int count) {
  float sum = 0.f;
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS) {
    float value[VECTOR];
    unpack(gradient[index], value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) sum += value[j] * value[j];
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Computes multiplier and overflow from the sums of squares. `scale` is the loss scale, or null. `most` is the largest
// norm of the gradients divided by the loss scale, or 0 for no limit. The squares of finite gradients overflow only if
// their norm is above 1.8e19.
extern "C" __global__ void __launch_bounds__(THREADS)
    finish_squares(const float *partial, int count, const float *scale, float most, float *multiplier,
                   unsigned char *overflow) {
  float sum = 0.f;
  for (int i = threadIdx.x; i < count; i += THREADS) sum += partial[i];
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  const float inverse = scale ? 1.f / scale[0] : 1.f, norm = sqrtf(sum) * inverse;
  multiplier[0] = most > 0.f ? inverse * (most / fmaxf(norm, most)) : inverse;
  overflow[0] = sum - sum != 0.f; // NaN or infinity
}

// Loshchilov and Hutter 2019, algorithm 2. The powers of the betas are those of this update.
extern "C" __global__ void __launch_bounds__(THREADS)
    adamw(uint4 *weight, float *master, const uint4 *gradient, float *first, float *second, const float *beta1_power,
          const float *beta2_power, const float *rate, const float *multiplier, const unsigned char *overflow,
          float factor, float beta1, float beta2, float epsilon, float decay, int count) {
  if (overflow && overflow[0]) return;
  const float step = rate[0] * factor, scale = multiplier[0], keep = 1.f - step * decay;
  const float slope = step / (1.f - beta1_power[0]), root = sqrtf(1.f - beta2_power[0]);
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS) {
    float value[VECTOR], g[VECTOR], m[VECTOR], v[VECTOR];
    unpack(gradient[index], g);
    load_floats(first, index, m);
    load_floats(second, index, v);
    if (master) load_floats(master, index, value);
    else unpack(weight[index], value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      g[j] *= scale;
      m[j] = beta1 * m[j] + (1.f - beta1) * g[j];
      v[j] = beta2 * v[j] + (1.f - beta2) * g[j] * g[j];
      value[j] = value[j] * keep - slope * (m[j] / (sqrtf(v[j]) / root + epsilon));
    }
    store_floats(first, index, m);
    store_floats(second, index, v);
    if (master) store_floats(master, index, value);
    weight[index] = pack(value);
  }
}

// Multiplies the powers of a beta by the beta.
extern "C" __global__ void __launch_bounds__(THREADS)
    advance_powers(float *powers, const unsigned char *overflow, float beta, int count) {
  if (overflow && overflow[0]) return;
  for (int i = blockIdx.x * THREADS + threadIdx.x; i < count; i += gridDim.x * THREADS) powers[i] *= beta;
}

// velocity = momentum * velocity + gradient + decay * weight; then the weight decreases by the learning rate times the
// velocity, or with `nesterov` times the gradient plus momentum times the velocity. `velocity` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    momentum(uint4 *weight, float *master, const uint4 *gradient, float *velocity, const float *rate,
             const float *multiplier, const unsigned char *overflow, float factor, float momentum, float decay,
             int nesterov, int count) {
  if (overflow && overflow[0]) return;
  const float step = rate[0] * factor, scale = multiplier[0];
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS) {
    float value[VECTOR], g[VECTOR], v[VECTOR];
    unpack(gradient[index], g);
    if (master) load_floats(master, index, value);
    else unpack(weight[index], value);
    if (velocity) load_floats(velocity, index, v);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      g[j] = g[j] * scale + decay * value[j];
      if (velocity) {
        v[j] = momentum * v[j] + g[j];
        g[j] = nesterov ? g[j] + momentum * v[j] : v[j];
      }
      value[j] -= step * g[j];
    }
    if (velocity) store_floats(velocity, index, v);
    if (master) store_floats(master, index, value);
    weight[index] = pack(value);
  }
}
