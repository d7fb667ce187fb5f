// Updates of flat weights, and what precedes them. This file is appended to vector.cuh; ELEMENT is the type of weights
// and gradients. `master` is null for float32 weights; otherwise it holds the float32 weights, whose rounded values the
// update stores in `weight`. All counts are numbers of vectors.
//
// Gradients are multiplied by multiplier[0], the inverse of the loss scale times the factor of gradient clipping.
// Nothing changes if overflow[0] is 1; overflow may be null. `factor` is the factor of the learning rate rate[0].
//
// All weights of a launch have equal settings, so the numbers that some optimizers store for each weight are equal, and
// the first one is used. The alignment of the tensors is filled with zeros, which all updates keep.
//
// Updates with norms have a grid of PARTS x tensors. The first launch stores two sums of each block in `partial`,
// [tensors, PARTS, 2], and the second one adds them. `starts` and `sizes` are those of the tensors, in vectors.

#define THREADS 256
#define PARTS 16

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

// Weights before and after an update.
struct Weights {
  uint4 *weight;
  float *master;

  __device__ __forceinline__ void load(int index, float *value) const {
    if (master) load_floats(master, index, value);
    else unpack(weight[index], value);
  }

  __device__ __forceinline__ void store(int index, const float *value) const {
    if (master) store_floats(master, index, value);
    weight[index] = pack(value);
  }
};

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

// Loads a gradient, multiplied by `scale`.
__device__ __forceinline__ void load_gradient(const uint4 *gradient, int index, float scale, float *value) {
  unpack(gradient[index], value);
#pragma unroll
  for (int j = 0; j < VECTOR; ++j) value[j] *= scale;
}

#define FOR_ELEMENTS(index, count) \
  for (int index = blockIdx.x * THREADS + threadIdx.x; index < count; index += gridDim.x * THREADS)
#define FOR_TENSOR(index, starts, sizes) \
  for (int index = starts[blockIdx.y] + blockIdx.x * THREADS + threadIdx.x; \
       index < starts[blockIdx.y] + sizes[blockIdx.y]; index += PARTS * THREADS)

// Adam (Kingma and Ba 2015), if `coupled` is 1; the weight decay is then part of the gradient. Else AdamW (Loshchilov
// and Hutter 2019, algorithm 2). The powers of the betas are those of this update.
extern "C" __global__ void __launch_bounds__(THREADS)
    adam(uint4 *weight, float *master, const uint4 *gradient, float *first, float *second, const float *beta1_power,
         const float *beta2_power, const float *rate, const float *multiplier, const unsigned char *overflow,
         float factor, float decay, float beta1, float beta2, float epsilon, float coupled, int count) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float step = rate[0] * factor, scale = multiplier[0], keep = coupled ? 1.f : 1.f - step * decay;
  const float slope = step / (1.f - beta1_power[0]), root = sqrtf(1.f - beta2_power[0]);
  FOR_ELEMENTS(index, count) {
    float value[VECTOR], g[VECTOR], m[VECTOR], v[VECTOR];
    load_gradient(gradient, index, scale, g);
    load_floats(first, index, m);
    load_floats(second, index, v);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      g[j] += coupled * decay * value[j];
      m[j] = beta1 * m[j] + (1.f - beta1) * g[j];
      v[j] = beta2 * v[j] + (1.f - beta2) * g[j] * g[j];
      value[j] = value[j] * keep - slope * (m[j] / (sqrtf(v[j]) / root + epsilon));
    }
    store_floats(first, index, m);
    store_floats(second, index, v);
    weights.store(index, value);
  }
}

// Multiplies the powers of both betas by the betas.
extern "C" __global__ void __launch_bounds__(THREADS)
    advance_powers(float *beta1_power, float *beta2_power, const float *rate, const float *multiplier,
                   const unsigned char *overflow, float factor, float decay, float beta1, float beta2, int count) {
  if (overflow && overflow[0]) return;
  FOR_ELEMENTS(i, count) {
    beta1_power[i] *= beta1;
    beta2_power[i] *= beta2;
  }
}

// velocity = momentum * velocity + gradient + decay * weight; then the weight decreases by the learning rate times the
// velocity, or with `nesterov` times the gradient plus momentum times the velocity. `velocity` may be null.
extern "C" __global__ void __launch_bounds__(THREADS)
    momentum(uint4 *weight, float *master, const uint4 *gradient, float *velocity, const float *rate,
             const float *multiplier, const unsigned char *overflow, float factor, float decay, float momentum,
             float nesterov, int count) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float step = rate[0] * factor, scale = multiplier[0];
  FOR_ELEMENTS(index, count) {
    float value[VECTOR], g[VECTOR], v[VECTOR];
    load_gradient(gradient, index, scale, g);
    weights.load(index, value);
    if (velocity) load_floats(velocity, index, v);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      g[j] += decay * value[j];
      if (velocity) {
        v[j] = momentum * v[j] + g[j];
        g[j] = nesterov ? g[j] + momentum * v[j] : v[j];
      }
      value[j] -= step * g[j];
    }
    if (velocity) store_floats(velocity, index, v);
    weights.store(index, value);
  }
}

// Tieleman and Hinton 2012. `unused` is the averaged gradient, which only the centered variant needs.
extern "C" __global__ void __launch_bounds__(THREADS)
    rmsprop(uint4 *weight, float *master, const uint4 *gradient, float *velocity, float *square, float *unused,
            const float *rate, const float *multiplier, const unsigned char *overflow, float factor, float decay,
            float rho, float momentum, float epsilon, int count) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float step = rate[0] * factor, scale = multiplier[0];
  FOR_ELEMENTS(index, count) {
    float value[VECTOR], g[VECTOR], s[VECTOR], v[VECTOR];
    load_gradient(gradient, index, scale, g);
    load_floats(velocity, index, v);
    load_floats(square, index, s);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      g[j] += decay * value[j];
      s[j] = rho * s[j] + (1.f - rho) * g[j] * g[j];
      v[j] = momentum * v[j] + step * g[j] / sqrtf(s[j] + epsilon);
      value[j] -= v[j];
    }
    store_floats(velocity, index, v);
    store_floats(square, index, s);
    weights.store(index, value);
  }
}

// Chen et al. 2023, algorithm 2. rest1 and rest2 are 1 - beta1 and 1 - beta2: for a beta of 0.999, the difference in
// float32 has a relative error of 1e-5.
extern "C" __global__ void __launch_bounds__(THREADS)
    lion(uint4 *weight, float *master, const uint4 *gradient, float *moment, const float *rate, const float *multiplier,
         const unsigned char *overflow, float factor, float decay, float beta1, float beta2, float rest1,
         float rest2, int count) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float step = rate[0] * factor, scale = multiplier[0];
  FOR_ELEMENTS(index, count) {
    float value[VECTOR], g[VECTOR], m[VECTOR];
    load_gradient(gradient, index, scale, g);
    load_floats(moment, index, m);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      const float mean = beta1 * m[j] + rest1 * g[j];
      const float sign = mean > 0.f ? 1.f : mean < 0.f ? -1.f : mean;  // NaN remains NaN
      value[j] -= step * (sign + decay * value[j]);
      m[j] = beta2 * m[j] + rest2 * g[j];
    }
    store_floats(moment, index, m);
    weights.store(index, value);
  }
}

// The numbers of schedule-free AdamW: `correction` is 1 - beta2^t, and `rate_sum` the sum of the squares of the rates.
extern "C" __global__ void __launch_bounds__(THREADS)
    advance_schedule_free(float *correction, float *rate_sum, const float *rate, const float *multiplier,
                          const unsigned char *overflow, float factor, float decay, float beta1, float beta2,
                          float epsilon, float rest1, float rest2, int count) {
  if (overflow && overflow[0]) return;
  const float step = rate[0] * factor;
  FOR_ELEMENTS(i, count) {
    correction[i] = beta2 * correction[i] + rest2;
    rate_sum[i] += step * step * correction[i];
  }
}

// Defazio et al. 2024, algorithm 1, with the sequences of `ScheduleFreeAdamWOptimizer`. The numbers are those of this
// update.
extern "C" __global__ void __launch_bounds__(THREADS)
    schedule_free(uint4 *weight, float *master, const uint4 *gradient, float *spread, float *second,
                  const float *correction, const float *rate_sum, const float *rate, const float *multiplier,
                  const unsigned char *overflow, float factor, float decay, float beta1, float beta2, float epsilon,
                  float rest1, float rest2, int count) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float scale = multiplier[0], step = rate[0] * factor * sqrtf(correction[0]);
  const float share = step * step / fmaxf(rate_sum[0], 1e-30f); // a warm-up starts at a rate of 0
  FOR_ELEMENTS(index, count) {
    float value[VECTOR], g[VECTOR], s[VECTOR], v[VECTOR];
    load_gradient(gradient, index, scale, g);
    load_floats(spread, index, s);
    load_floats(second, index, v);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      v[j] = beta2 * v[j] + rest2 * g[j] * g[j];
      const float change = step * (g[j] / (sqrtf(v[j]) + epsilon) + decay * value[j]);
      s[j] -= change;
      value[j] += beta1 * share * s[j] - rest1 * change;
      s[j] *= 1.f - share;
    }
    store_floats(spread, index, s);
    store_floats(second, index, v);
    weights.store(index, value);
  }
}

// Stores the sums of a block.
__device__ __forceinline__ void store_partial(float *partial, float first, float second) {
  first = block_sum(first);
  __syncthreads(); // the shared memory of block_sum is used again
  second = block_sum(second);
  if (threadIdx.x != 0) return;
  float *own = partial + 2 * (blockIdx.y * PARTS + blockIdx.x);
  own[0] = first, own[1] = second;
}

// Returns the roots of both sums over the blocks of a tensor.
__device__ __forceinline__ float2 norms_of(const float *partial) {
  float first = 0.f, second = 0.f;
  for (int part = 0; part < PARTS; ++part) {
    first += partial[2 * (blockIdx.y * PARTS + part)];
    second += partial[2 * (blockIdx.y * PARTS + part) + 1];
  }
  return make_float2(sqrtf(first), sqrtf(second));
}

// You et al. 2017, algorithm 1: norms of the weights and of the gradients
extern "C" __global__ void __launch_bounds__(THREADS)
    lars_norms(uint4 *weight, float *master, const uint4 *gradient, float *velocity, const float *rate,
               const float *multiplier, const unsigned char *overflow, float factor, float decay, float momentum,
               float trust, float epsilon, float *partial, const int *starts, const int *sizes) {
  const Weights weights{weight, master};
  float of_weight = 0.f, of_gradient = 0.f;
  FOR_TENSOR(index, starts, sizes) {
    float value[VECTOR], g[VECTOR];
    load_gradient(gradient, index, multiplier[0], g);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) of_weight += value[j] * value[j], of_gradient += g[j] * g[j];
  }
  store_partial(partial, of_weight, of_gradient);
}

// Weights without decay have no rate of their own.
extern "C" __global__ void __launch_bounds__(THREADS)
    lars(uint4 *weight, float *master, const uint4 *gradient, float *velocity, const float *rate,
         const float *multiplier, const unsigned char *overflow, float factor, float decay, float momentum, float trust,
         float epsilon, const float *partial, const int *starts, const int *sizes) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float2 norms = norms_of(partial);
  const bool adapts = decay > 0.f && norms.x > 0.f && norms.y > 0.f;
  const float ratio = adapts ? trust * norms.x / (norms.y + decay * norms.x + epsilon) : 1.f;
  const float step = rate[0] * factor * ratio, scale = multiplier[0];
  FOR_TENSOR(index, starts, sizes) {
    float value[VECTOR], g[VECTOR], v[VECTOR];
    load_gradient(gradient, index, scale, g);
    load_floats(velocity, index, v);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      v[j] = momentum * v[j] + step * (g[j] + decay * value[j]);
      value[j] -= v[j];
    }
    store_floats(velocity, index, v);
    weights.store(index, value);
  }
}

// Returns the direction of an update by LAMB.
__device__ __forceinline__ float lamb_direction(float m, float v, float value, float beta1_power, float beta2_power,
                                                float epsilon, float decay) {
  return m / (1.f - beta1_power) / (sqrtf(v / (1.f - beta2_power)) + epsilon) + decay * value;
}

// You et al. 2020, algorithm 2: moments, and norms of the weights and of the directions
extern "C" __global__ void __launch_bounds__(THREADS)
    lamb_moments(uint4 *weight, float *master, const uint4 *gradient, float *first, float *second,
                 const float *beta1_power, const float *beta2_power, const float *rate, const float *multiplier,
                 const unsigned char *overflow, float factor, float decay, float beta1, float beta2, float epsilon,
                 float *partial, const int *starts, const int *sizes) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float scale = multiplier[0], power1 = beta1_power[0], power2 = beta2_power[0];
  float of_weight = 0.f, of_direction = 0.f;
  FOR_TENSOR(index, starts, sizes) {
    float value[VECTOR], g[VECTOR], m[VECTOR], v[VECTOR];
    load_gradient(gradient, index, scale, g);
    load_floats(first, index, m);
    load_floats(second, index, v);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j) {
      m[j] = beta1 * m[j] + (1.f - beta1) * g[j];
      v[j] = beta2 * v[j] + (1.f - beta2) * g[j] * g[j];
      const float direction = lamb_direction(m[j], v[j], value[j], power1, power2, epsilon, decay);
      of_weight += value[j] * value[j], of_direction += direction * direction;
    }
    store_floats(first, index, m);
    store_floats(second, index, v);
  }
  store_partial(partial, of_weight, of_direction);
}

// Weights without decay have no rate of their own.
extern "C" __global__ void __launch_bounds__(THREADS)
    lamb(uint4 *weight, float *master, const uint4 *gradient, const float *first, const float *second,
         const float *beta1_power, const float *beta2_power, const float *rate, const float *multiplier,
         const unsigned char *overflow, float factor, float decay, float beta1, float beta2, float epsilon,
         const float *partial, const int *starts, const int *sizes) {
  if (overflow && overflow[0]) return;
  const Weights weights{weight, master};
  const float2 norms = norms_of(partial);
  const float ratio = decay > 0.f && norms.x > 0.f && norms.y > 0.f ? norms.x / norms.y : 1.f;
  const float step = rate[0] * factor * ratio, power1 = beta1_power[0], power2 = beta2_power[0];
  FOR_TENSOR(index, starts, sizes) {
    float value[VECTOR], m[VECTOR], v[VECTOR];
    load_floats(first, index, m);
    load_floats(second, index, v);
    weights.load(index, value);
#pragma unroll
    for (int j = 0; j < VECTOR; ++j)
      value[j] -= step * lamb_direction(m[j], v[j], value[j], power1, power2, epsilon, decay);
    weights.store(index, value);
  }
}
