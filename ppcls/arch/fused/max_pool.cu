// Max pooling of NHWC images, forward and backward. This file is appended to vector.cuh.
//
// A thread computes one vector of channels of one pixel. The index of a block is (part of a row, row). `winners` has
// one byte per output value: the position of the maximum within the window, counted row by row.

struct Shape { // sizes of one pooling; windows are square
  int batch, height, width, columns, out_height, out_width, kernel, stride, padding;
};

extern "C" __global__ void max_pool(const uint4 *x, uint4 *y, unsigned char *winners, Shape shape) {
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place >= shape.out_width * shape.columns) return;
  const int column = place % shape.columns, left = place / shape.columns * shape.stride - shape.padding;
  for (int row = blockIdx.y; row < shape.batch * shape.out_height; row += gridDim.y) {
    const int top = row % shape.out_height * shape.stride - shape.padding;
    const uint4 *image = x + row / shape.out_height * shape.height * shape.width * shape.columns + column;
    float best[VECTOR];
    unsigned char winner[VECTOR] = {};
#pragma unroll
    for (int i = 0; i < VECTOR; ++i) best[i] = __int_as_float(0xff800000); // minus infinity
    for (int i = max(0, -top); i < shape.kernel && top + i < shape.height; ++i)
      for (int j = max(0, -left); j < shape.kernel && left + j < shape.width; ++j) {
        float value[VECTOR];
        unpack(image[((top + i) * shape.width + left + j) * shape.columns], value);
#pragma unroll
        for (int k = 0; k < VECTOR; ++k)
          if (value[k] > best[k] || value[k] != value[k]) { // NaN wins
            best[k] = value[k];
            winner[k] = i * shape.kernel + j;
          }
      }
    const int index = row * shape.out_width * shape.columns + place;
    y[index] = pack(best);
#pragma unroll
    for (int k = 0; k < VECTOR; k += 4)
      reinterpret_cast<uchar4 *>(winners)[(index * VECTOR + k) / 4] =
          make_uchar4(winner[k], winner[k + 1], winner[k + 2], winner[k + 3]);
  }
}

extern "C" __global__ void max_pool_gradient(const uint4 *dy, const unsigned char *winners, uint4 *dx, Shape shape) {
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place >= shape.width * shape.columns) return;
  const int column = place % shape.columns, x = place / shape.columns + shape.padding;
  const int first_x = x < shape.kernel ? 0 : (x - shape.kernel) / shape.stride + 1;
  const int last_x = min(x / shape.stride, shape.out_width - 1);
  for (int row = blockIdx.y; row < shape.batch * shape.height; row += gridDim.y) {
    const int y = row % shape.height + shape.padding;
    const int first_y = y < shape.kernel ? 0 : (y - shape.kernel) / shape.stride + 1;
    const int last_y = min(y / shape.stride, shape.out_height - 1);
    const int image = row / shape.height * shape.out_height;
    float sum[VECTOR] = {};
    for (int out_y = first_y; out_y <= last_y; ++out_y)
      for (int out_x = first_x; out_x <= last_x; ++out_x) {
        const int source = ((image + out_y) * shape.out_width + out_x) * shape.columns + column;
        const int position = (y - out_y * shape.stride) * shape.kernel + x - out_x * shape.stride;
        float gradient[VECTOR];
        unpack(dy[source], gradient);
#pragma unroll
        for (int k = 0; k < VECTOR; k += 4) {
          const uchar4 winner = reinterpret_cast<const uchar4 *>(winners)[(source * VECTOR + k) / 4];
          sum[k] += winner.x == position ? gradient[k] : 0.f;
          sum[k + 1] += winner.y == position ? gradient[k + 1] : 0.f;
          sum[k + 2] += winner.z == position ? gradient[k + 2] : 0.f;
          sum[k + 3] += winner.w == position ? gradient[k + 3] : 0.f;
        }
      }
    dx[row * shape.width * shape.columns + place] = pack(sum);
  }
}
