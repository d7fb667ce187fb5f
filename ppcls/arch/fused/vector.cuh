// Functions that convert vectors of 16 bytes to and from float32. All kernels read and write images as such vectors.
//
// NVRTC compiles this file at run time with -DELEMENT=0 (float32), 1 (float16) or 2 (bfloat16). The tests compile the
// sources for a CPU with -DEMULATED, where tests/support/cuda_emulator.h replaces the functions with assembly.

#if ELEMENT == 0
#define VECTOR 4
#else
#define VECTOR 8
#endif

#ifndef EMULATED
// Converts two 16-bit numbers in a word to float32.
__device__ __forceinline__ void unpack_pair(unsigned int word, float &low, float &high) {
#if ELEMENT == 1
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(low), "=f"(high)
      : "r"(word));
#else
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
#endif
}

// Rounds two numbers to 16 bits, and returns them in a word.
__device__ __forceinline__ unsigned int pack_pair(float low, float high) {
  unsigned int word;
#if ELEMENT == 1
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#else
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
#endif
  return word;
}
#endif

__device__ __forceinline__ void unpack(const uint4 &packed, float *value) {
  const unsigned int word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    value[i] = __uint_as_float(word[i]);
#else
    unpack_pair(word[i], value[2 * i], value[2 * i + 1]);
#endif
  }
}

__device__ __forceinline__ uint4 pack(const float *value) {
  unsigned int word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    word[i] = __float_as_uint(value[i]);
#else
    word[i] = pack_pair(value[2 * i], value[2 * i + 1]);
#endif
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}

// The operations after a normalization or a convolution: none, ReLU, the addition of a shortcut and ReLU, hard swish, or
// swish.
enum Tail { NONE, RELU, ADD_RELU, HARD_SWISH, SWISH };

// With the fast division, whose error of 2 units in the last place of float32 is small beside that of __expf.
__device__ __forceinline__ float sigmoid(float value) { return __fdividef(1.f, 1.f + __expf(-value)); }

// Whether ReLU keeps a value. NaN stays NaN.
__device__ __forceinline__ bool passes_relu(float value) { return !(value <= 0.f); }

// The activation of a value, to which a shortcut was added already.
template <Tail TAIL> __device__ __forceinline__ float activate(float value) {
  if (TAIL == RELU || TAIL == ADD_RELU) return passes_relu(value) ? value : 0.f;
  if (TAIL == HARD_SWISH) return value * fminf(fmaxf(value + 3.f, 0.f), 6.f) * (1.f / 6.f);
  if (TAIL == SWISH) return value * sigmoid(value);
  return value;
}

#define PIXELS_AHEAD 4 // pixels that a thread loads before it adds them

// Adds a vector of every `step`-th pixel of an image to `sum`, from the pixel `first` on. The order is fixed.
__device__ __forceinline__ void add_pixels(const uint4 *image, int column, int first, int step, int pixels,
                                           int columns, float (&sum)[VECTOR]) {
  for (; first < pixels; first += PIXELS_AHEAD * step) {
    uint4 packed[PIXELS_AHEAD];
#pragma unroll
    for (int i = 0; i < PIXELS_AHEAD; ++i) {
      const int pixel = first + i * step;
      packed[i] = pixel < pixels ? image[(long long)pixel * columns + column] : make_uint4(0u, 0u, 0u, 0u);
    }
#pragma unroll
    for (int i = 0; i < PIXELS_AHEAD; ++i) {
      float value[VECTOR];
      unpack(packed[i], value);
#pragma unroll
      for (int j = 0; j < VECTOR; ++j) sum[j] += value[j];
    }
  }
}
