// Replaces 8-bit pixels by numbers from a table. This file is appended to vector.cuh. NVRTC receives CHANNELS, the number
// of channels of the output: 3 or 4.
//
// A thread reads four pixels of three channels, which are three words. The table has 256 numbers of 16 bits for each
// channel of the output. Channel c of the output replaces channel c of the pixel, or channel 2 - c if `reversed` is not
// 0. A fourth channel replaces the number 0.

#define THREADS 256 // threads per block
#define PIXELS 4    // pixels per thread

extern "C" __global__ void __launch_bounds__(THREADS)
    look_up(const unsigned int *pixels, const unsigned short *table, uint2 *y, int groups, int reversed) {
  __shared__ unsigned short numbers[256 * CHANNELS];
  for (int i = threadIdx.x; i < 256 * CHANNELS; i += THREADS) numbers[i] = table[i];
  __syncthreads();
  for (int group = blockIdx.x * THREADS + threadIdx.x; group < groups; group += gridDim.x * THREADS) {
    const unsigned int word[3] = {pixels[3 * group], pixels[3 * group + 1], pixels[3 * group + 2]};
    unsigned int half[PIXELS * CHANNELS];
#pragma unroll
    for (int pixel = 0; pixel < PIXELS; ++pixel)
#pragma unroll
      for (int channel = 0; channel < CHANNELS; ++channel) {
        unsigned int value = 0;
        if (channel < 3) {
          const int first = 3 * pixel + channel, last = 3 * pixel + 2 - channel;
          const unsigned int plain = word[first / 4] >> first % 4 * 8, other = word[last / 4] >> last % 4 * 8;
          value = (reversed ? other : plain) & 255u;
        }
        half[pixel * CHANNELS + channel] = numbers[channel * 256 + value];
      }
#pragma unroll
    for (int i = 0; i < CHANNELS; ++i)
      y[CHANNELS * group + i] =
          make_uint2(half[4 * i] | half[4 * i + 1] << 16, half[4 * i + 2] | half[4 * i + 3] << 16);
  }
}

// Appends channels of zeros to pixels with three channels, up to CHANNELS, 4 or 8. A thread processes two pixels.
extern "C" __global__ void __launch_bounds__(THREADS) widen(const unsigned int *pixels, uint4 *y, int pairs) {
  for (int pair = blockIdx.x * THREADS + threadIdx.x; pair < pairs; pair += gridDim.x * THREADS) {
    const unsigned int a = pixels[3 * pair], b = pixels[3 * pair + 1], c = pixels[3 * pair + 2];
    const unsigned int last = b & 0xffffu, first = b >> 16 | c << 16;
    if (CHANNELS == 4) {
      y[pair] = make_uint4(a, last, first, c >> 16);
    } else {
      y[2 * pair] = make_uint4(a, last, 0u, 0u);
      y[2 * pair + 1] = make_uint4(first, c >> 16, 0u, 0u);
    }
  }
}
