// Functions that convert vectors of 16 bytes to and from float32. All kernels read and write images as such vectors.
//
// NVRTC compiles this file at run time with -DELEMENT=0 (float32), 1 (float16) or 2 (bfloat16).

#if ELEMENT == 0
#define VECTOR 4
#else
#define VECTOR 8
#endif

__device__ __forceinline__ void unpack(const uint4 &packed, float *value) {
  const unsigned int word[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    value[i] = __uint_as_float(word[i]);
#elif ELEMENT == 1
    asm("{.reg .f16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
        : "=f"(value[2 * i]), "=f"(value[2 * i + 1])
        : "r"(word[i]));
#else
    value[2 * i] = __uint_as_float(word[i] << 16);
    value[2 * i + 1] = __uint_as_float(word[i] & 0xffff0000u);
#endif
  }
}

__device__ __forceinline__ uint4 pack(const float *value) {
  unsigned int word[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#if ELEMENT == 0
    word[i] = __float_as_uint(value[i]);
#elif ELEMENT == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(value[2 * i + 1]), "f"(value[2 * i]));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word[i]) : "f"(value[2 * i + 1]), "f"(value[2 * i]));
#endif
  }
  return make_uint4(word[0], word[1], word[2], word[3]);
}
