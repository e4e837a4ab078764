// pool_windows.h - which input rows (or columns) each window of a pooling covers, and the reverse.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "tarn/core/kernels/pool.h"

namespace tarn::cpu {

/// One axis of a pooling. Window o covers first[o], first[o] + step ... below last[o], all inside
/// the input; input i lies in windows that are all in [from[i], until[i]).
struct PoolAxis {
  int64_t in, out, step;
  std::vector<int64_t> first, last, extent;  // extent: with the padding that counts
  std::vector<int64_t> from, until;
  int64_t kernel, stride, pad;  // tap k of window o lies at o * stride - pad + k * step

  PoolAxis(int64_t in_size, int64_t out_size, int64_t kernel_size, int64_t window_stride,
           int64_t padding, int64_t dilation, bool adaptive)
      : in(in_size),
        out(out_size),
        step(adaptive ? 1 : dilation),
        kernel(kernel_size),
        stride(window_stride),
        pad(padding) {
    from.assign(static_cast<size_t>(in), out);
    until.assign(static_cast<size_t>(in), 0);
    for (int64_t o = 0; o < out; ++o) {
      int64_t begin = o * stride - pad, end = begin + (kernel - 1) * dilation + 1;
      if (adaptive) {
        begin = o * in / out;
        end = ((o + 1) * in + out - 1) / out;
      }
      extent.push_back(std::min(end, in + (adaptive ? 0 : pad)) - begin);
      if (begin < 0) begin += (-begin + step - 1) / step * step;
      first.push_back(begin);
      last.push_back(std::min(end, in));
      for (int64_t i = begin; i < last.back(); i += step) {
        from[i] = std::min(from[i], o);
        until[i] = std::max(until[i], o + 1);
      }
    }
  }
  /// The windows whose tap k lies inside the input: [begin, end). Not for adaptive pooling.
  std::pair<int64_t, int64_t> windows_with_tap(int64_t k) const {
    const int64_t shift = k * step - pad;
    const int64_t begin = shift < 0 ? (-shift + stride - 1) / stride : 0;
    const int64_t end = shift < in ? (in - shift - 1) / stride + 1 : 0;
    return {begin, std::min(end, out)};
  }
  bool covers(int64_t o, int64_t i) const {
    return i >= first[o] && i < last[o] && (step == 1 || (i - first[o]) % step == 0);
  }
};

/// Both axes and the sizes around them.
struct PoolWindows {
  int64_t batch, channels;
  PoolAxis h, w;
  bool channels_last;
  bool adaptive;
  bool include_pad;
  int64_t divisor_override;

  PoolWindows(const Tensor& large, const Tensor& small, const Pool2dOptions& o)
      : batch(large.sizes()[0]),
        channels(large.sizes()[1]),
        h(large.sizes()[2], small.sizes()[2], o.kernel_h, o.stride_h, o.pad_h, o.dilation_h,
          o.adaptive),
        w(large.sizes()[3], small.sizes()[3], o.kernel_w, o.stride_w, o.pad_w, o.dilation_w,
          o.adaptive),
        channels_last(!(large.is_contiguous() && small.is_contiguous())),
        adaptive(o.adaptive),
        include_pad(o.count_include_pad && !o.adaptive),
        divisor_override(o.adaptive ? 0 : o.divisor_override) {}

  /// What the sum over window (oh, ow) is divided by.
  int64_t divisor(int64_t oh, int64_t ow) const {
    if (divisor_override != 0) return divisor_override;
    if (include_pad) return h.extent[oh] * w.extent[ow];
    return std::max<int64_t>(1, h.last[oh] - h.first[oh]) *
           std::max<int64_t>(1, w.last[ow] - w.first[ow]);
  }
  int64_t work() const { return h.in * w.in / std::max<int64_t>(1, h.out); }
};

}  // namespace tarn::cpu
