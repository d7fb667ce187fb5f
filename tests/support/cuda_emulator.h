// Runs CUDA kernels on a CPU, to test their logic without a GPU. Include this file before a source of
// ppcls/arch/fused, and compile with -DEMULATED -DELEMENT=n.
//
// A block's threads are coroutines, of which one runs at a time. A thread that reaches a barrier lets the others
// run. Blocks run one after another, so static variables can replace shared memory.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __restrict__
#define __grid_constant__

struct Index {
  unsigned int x, y, z;
};
struct uint2 {
  unsigned int x, y;
};
struct alignas(16) uint4 {
  unsigned int x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct uchar4 {
  unsigned char x, y, z, w;
};
inline uint2 make_uint2(unsigned int x, unsigned int y) { return {x, y}; }
inline uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }

static Index threadIdx, blockIdx, blockDim, gridDim;
static unsigned char dynamic_shared[1 << 18];

namespace emulator {
const int WARP = 32;
const size_t STACK = 256 << 10;
struct Thread {
  ucontext_t context;
  bool done;
  std::vector<char> stack;
};
static std::vector<Thread> threads;
static ucontext_t scheduler;
static int current, total;
static void *entry;
static long integers[32];
static double floats[8];

// Kernels receive integers and pointers in registers and then on the stack, and floats in other registers.
typedef void (*Kernel)(long, long, long, long, long, long, double, double, double, double, double, double, double,
                       double, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                       long, long, long, long, long, long, long, long, long, long);

static void run() {
  const long *a = integers;
  const double *f = floats;
  ((Kernel)entry)(a[0], a[1], a[2], a[3], a[4], a[5], f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7], a[6], a[7], a[8],
                  a[9], a[10], a[11], a[12], a[13], a[14], a[15], a[16], a[17], a[18], a[19], a[20], a[21], a[22],
                  a[23], a[24], a[25], a[26], a[27], a[28], a[29]);
  threads[current].done = true;
  swapcontext(&threads[current].context, &scheduler);
}

static void select(int thread) {
  current = thread;
  threadIdx.x = thread % blockDim.x;
  threadIdx.y = thread / blockDim.x % blockDim.y;
  threadIdx.z = thread / (blockDim.x * blockDim.y);
}

static void yield() { swapcontext(&threads[current].context, &scheduler); }

// Lets other threads run until all threads of [first, last) have arrived here as often as this one.
static std::vector<long> arrivals[2];
static void barrier(int kind, int first, int last) {
  const long mine = ++arrivals[kind][current];
  for (;;) {
    bool waiting = false;
    for (int i = first; i < last; ++i) waiting |= !threads[i].done && arrivals[kind][i] < mine;
    if (!waiting) return;
    yield();
  }
}
inline int warp_start() { return current / WARP * WARP; }
inline int lane() { return current % WARP; }
inline void warp_barrier() { barrier(1, warp_start(), std::min(warp_start() + WARP, total)); }

static uint32_t exchange[2048][32]; // up to 32 words per thread
// Publishes words of each lane of a warp. The result points to the words of the first lane.
inline uint32_t (*publish(const uint32_t *words, int count))[32] {
  warp_barrier(); // the others have read the previous words
  memcpy(exchange[current], words, count * sizeof(uint32_t));
  warp_barrier();
  return &exchange[warp_start()];
}
} // namespace emulator

inline void __syncthreads() { emulator::barrier(0, 0, emulator::total); }
inline void __syncwarp() { emulator::warp_barrier(); }
inline void __threadfence() {}

template <class T> T from_lane(T value, int lane) {
  uint32_t word;
  memcpy(&word, &value, 4);
  word = emulator::publish(&word, 1)[lane][0];
  memcpy(&value, &word, 4);
  return value;
}
template <class T> T __shfl_xor_sync(unsigned int, T value, int mask, int width = 32) {
  (void)width;
  return from_lane(value, emulator::lane() ^ mask);
}
template <class T> T __shfl_down_sync(unsigned int, T value, int distance, int width = 32) {
  const int source = emulator::lane() + distance;
  return from_lane(value, emulator::lane() % width + distance < width ? source : emulator::lane());
}
template <class T> T __shfl_sync(unsigned int, T value, int lane) { return from_lane(value, lane); }

template <class T> T atomicAdd(T *address, T value) {
  const T old = *address;
  *address += value;
  return old;
}
template <class T> T __ldcg(const T *address) { return *address; }
template <class T> T __ldg(const T *address) { return *address; }
using std::max;
using std::min;
inline float rsqrtf(float x) { return 1.f / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __uint_as_float(unsigned int word) {
  float value;
  memcpy(&value, &word, 4);
  return value;
}
inline unsigned int __float_as_uint(float value) {
  unsigned int word;
  memcpy(&word, &value, 4);
  return word;
}
inline float __int_as_float(int word) { return __uint_as_float((unsigned int)word); }

#if ELEMENT == 1
inline float to_float(uint16_t bits) {
  _Float16 half;
  memcpy(&half, &bits, 2);
  return (float)half;
}
inline uint16_t to_bits(float value) {
  const _Float16 half = (_Float16)value;
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}
#else
inline float to_float(uint16_t bits) { return __uint_as_float((unsigned int)bits << 16); }
inline uint16_t to_bits(float value) {
  const unsigned int word = __float_as_uint(value);
  if (value != value) return 0x7fc0;
  return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}
#endif
inline void unpack_pair(unsigned int word, float &low, float &high) {
  low = to_float(word & 0xffff);
  high = to_float(word >> 16);
}
inline unsigned int pack_pair(float low, float high) {
  return to_bits(low) | (unsigned int)to_bits(high) << 16;
}

// The matrix product of a warp: d += a b, with a [16, 16], b [16, 8] and d [16, 8] (PTX: mma.m16n8k16).
inline void multiply_tiles(float (&d)[4], const unsigned int (&a)[4], unsigned int b0, unsigned int b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  auto words = emulator::publish(mine, 6);
  const int lane = emulator::lane();
  auto element = [](uint32_t word, int odd) { return to_float(odd ? word >> 16 : word & 0xffff); };
  auto left = [&](int row, int k) {
    const int group = row % 8, pair = k % 8 / 2, word = row / 8 + k / 8 * 2;
    return element(words[group * 4 + pair][word], k % 2);
  };
  auto right = [&](int k, int column) { return element(words[column * 4 + k % 8 / 2][4 + k / 8], k % 2); };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) d[i] += left(row, k) * right(k, column);
  }
}

// Loads four 8x8 matrices of 16-bit numbers (PTX: ldmatrix.x4). Lane 8 m + r passes the address of row r of matrix m.
inline void load_tiles(unsigned int (&result)[4], const void *row, bool transposed) {
  const uint64_t address = (uint64_t)row;
  const uint32_t mine[2] = {(uint32_t)address, (uint32_t)(address >> 32)};
  auto words = emulator::publish(mine, 2);
  const int lane = emulator::lane();
  auto element = [&](int matrix, int r, int c) {
    const uint32_t *word = words[matrix * 8 + r];
    return ((const uint16_t *)((uint64_t)word[0] | (uint64_t)word[1] << 32))[c];
  };
  uint32_t loaded[4];
  for (int m = 0; m < 4; ++m) {
    const int r = lane / 4, c = lane % 4 * 2;
    loaded[m] = transposed ? element(m, c, r) | (uint32_t)element(m, c + 1, r) << 16
                           : element(m, r, c) | (uint32_t)element(m, r, c + 1) << 16;
  }
  emulator::warp_barrier();
  memcpy(result, loaded, sizeof(loaded));
}

inline void copy_vector(void *target, const void *source, bool used) {
  if (used) memcpy(target, source, 16);
  else memset(target, 0, 16);
}
inline void await_copies() {}
inline float power(float x) { return std::exp2(x); }

extern "C" void emulate(void *kernel, const unsigned int *grid, const unsigned int *block, const long *integers,
                        const float *floats) {
  using namespace emulator;
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {block[0], block[1], block[2]};
  entry = kernel;
  memcpy(emulator::integers, integers, sizeof(emulator::integers));
  for (int i = 0; i < 8; ++i) memcpy(&emulator::floats[i], &floats[i], 4);
  total = block[0] * block[1] * block[2];
  threads.resize(total);
  for (auto &thread : threads) thread.stack.resize(STACK);
  for (unsigned int z = 0; z < grid[2]; ++z)
    for (unsigned int y = 0; y < grid[1]; ++y)
      for (unsigned int x = 0; x < grid[0]; ++x) {
        blockIdx = {x, y, z};
        memset(dynamic_shared, 0xff, sizeof(dynamic_shared)); // NaN
        for (auto &counts : arrivals) counts.assign(total, 0);
        for (int i = 0; i < total; ++i) {
          auto &thread = threads[i];
          thread.done = false;
          getcontext(&thread.context);
          thread.context.uc_stack.ss_sp = thread.stack.data();
          thread.context.uc_stack.ss_size = STACK;
          thread.context.uc_link = nullptr;
          makecontext(&thread.context, run, 0);
        }
        for (bool running = true; running;) {
          running = false;
          for (int i = 0; i < total; ++i)
            if (!threads[i].done) {
              select(i);
              swapcontext(&scheduler, &threads[i].context);
              running = true;
            }
        }
      }
}
