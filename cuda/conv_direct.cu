// conv_direct.cu - convolutions whose groups have few channels, one thread per result; and the
// permutation of filters that libraries want.
//
// Neighbouring threads are neighbouring channels. Depthwise reads and writes are then contiguous:
// x comes from memory once (its R * S uses hit the caches), weights from L1, y is written once:
// 2 elements of traffic for R * S multiply-adds.
#include "tarn/cuda/conv_direct.h"
#include "tarn/cuda/conv_tile.cuh"
#include "tarn/cuda/grid.cuh"

namespace tarn::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void conv_direct_forward_kernel(ConvShape p, ConvDivisors d, FastDivisor y_image,
                                           FastDivisor channels, const T* x, const T* w,
                                           const T* bias, T* y) {
  using C = compute_t<T>;
  const int64_t count = p.n * p.y_image(), step = grid_step();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x; first < count;
       first += step) {
    const Place at = place_from(place_of(first, y_image), static_cast<int>(threadIdx.x), y_image);
    if (at.image >= p.n) return;
    const Split pixel = split(at.rest, channels);
    const Split out = split(pixel.quotient, d.y_row);
    const int k = pixel.rest, group = split(k, d.kg).quotient;
    const T* const image = x + at.image * p.x_image() + group * p.cg();
    const T* const filter = w + static_cast<int64_t>(k) * p.cg() * p.filter();
    C sum = C(0);
    for (int r = 0; r < p.r; ++r) {
      const int ih = input_of(out.quotient, r, p.stride_h, p.dilation_h, p.pad_h);
      if (!inside(ih, p.h)) continue;
      for (int s = 0; s < p.s; ++s) {
        const int iw = input_of(out.rest, s, p.stride_w, p.dilation_w, p.pad_w);
        if (!inside(iw, p.w)) continue;
        const T* const in = image + (ih * p.w + iw) * p.c;
        for (int c = 0; c < p.cg(); ++c) {
          sum += static_cast<C>(in[c]) * static_cast<C>(filter[c * p.filter() + r * p.s + s]);
        }
      }
    }
    if (bias) sum += static_cast<C>(bias[k]);
    y[first + threadIdx.x] = T(sum);
  }
}

template <class T>
__global__ void conv_direct_backward_data_kernel(ConvShape p, ConvDivisors d, FastDivisor x_image,
                                                 FastDivisor channels, const T* gy, const T* w,
                                                 T* gx) {
  using C = compute_t<T>;
  const int64_t count = p.n * p.x_image(), step = grid_step();
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * blockDim.x; first < count;
       first += step) {
    const Place at = place_from(place_of(first, x_image), static_cast<int>(threadIdx.x), x_image);
    if (at.image >= p.n) return;
    const Split pixel = split(at.rest, channels);
    const Split in = split(pixel.quotient, d.x_row);
    const Split channel = split(pixel.rest, d.cg);  // group, and channel in it
    const int k0 = channel.quotient * p.kg();
    const int64_t per_filter = static_cast<int64_t>(p.cg()) * p.filter();
    const T* const image = gy + at.image * p.y_image() + k0;
    const T* const filters = w + k0 * per_filter + channel.rest * p.filter();
    C sum = C(0);
    for (int r = 0; r < p.r; ++r) {
      const int oh = output_of(in.quotient, r, d.stride_h, p.dilation_h, p.pad_h, p.oh);
      if (oh < 0) continue;
      for (int s = 0; s < p.s; ++s) {
        const int ow = output_of(in.rest, s, d.stride_w, p.dilation_w, p.pad_w, p.ow);
        if (ow < 0) continue;
        const T* const out = image + (oh * p.ow + ow) * p.k;
        for (int k = 0; k < p.kg(); ++k) {
          sum += static_cast<C>(out[k]) * static_cast<C>(filters[k * per_filter + r * p.s + s]);
        }
      }
    }
    gx[first + threadIdx.x] = T(sum);
  }
}

/// to [outer, b, a] = from [outer, a, b].
template <class U>
__global__ void swap_inner_kernel(int64_t count, int a, int b, const U* from, U* to) {
  for (int64_t i = grid_index(); i < count; i += grid_step()) {
    const int64_t row = i / a;
    const int64_t outer = row / b;
    const int64_t ia = i - row * a, ib = row - outer * b;
    to[i] = from[(outer * a + ia) * b + ib];
  }
}

void swap_inner(int64_t count, int a, int b, size_t item_size, const void* from, void* to,
                Stream stream) {
  TARN_ASSERT(item_size == 2 || item_size == 4);  // f64 stays with our own kernels
  const auto run = [&]<class U>(TypeTag<U>) {
    launch(swap_inner_kernel<U>, blocks_for(count, kThreads, stream), kThreads, 0, stream, count, a,
           b, static_cast<const U*>(from), static_cast<U*>(to));
  };
  item_size == 2 ? run(TypeTag<uint16_t>{}) : run(TypeTag<uint32_t>{});
}

FastDivisor divisor(int64_t v) {
  return FastDivisor(static_cast<uint32_t>(std::max<int64_t>(v, 1)));
}

}  // namespace

void conv_direct_forward(const ConvShape& p, const Tensor& x, const Tensor& weight,
                         const Tensor& bias, const Tensor& y, Stream stream) {
  visit_floating(x.dtype(), [&]<class T>(TypeTag<T>) {
    launch(conv_direct_forward_kernel<T>, blocks_for(y.numel(), kThreads, stream), kThreads, 0,
           stream, p, ConvDivisors(p), divisor(p.y_image()), divisor(p.k), x.data<T>(),
           weight.data<T>(), bias.data_or_null<T>(), y.data<T>());
  });
}

void conv_direct_backward_data(const ConvShape& p, const Tensor& gy, const Tensor& weight,
                               const Tensor& gx, Stream stream) {
  visit_floating(gx.dtype(), [&]<class T>(TypeTag<T>) {
    launch(conv_direct_backward_data_kernel<T>, blocks_for(gx.numel(), kThreads, stream), kThreads,
           0, stream, p, ConvDivisors(p), divisor(p.x_image()), divisor(p.c), gy.data<T>(),
           weight.data<T>(), gx.data<T>());
  });
}

void pack_filters(const ConvShape& p, size_t item_size, const void* from, void* to, Stream stream) {
  swap_inner(p.weights(), p.cg(), p.filter(), item_size, from, to, stream);
}

void unpack_filters(const ConvShape& p, size_t item_size, const void* from, void* to,
                    Stream stream) {
  swap_inner(p.weights(), p.filter(), p.cg(), item_size, from, to, stream);
}

}  // namespace tarn::cuda
