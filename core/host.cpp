// host.cpp - host_row_major: gathers any strides into row-major order.
#include "tarn/core/host.h"

#include "tarn/core/factory.h"

namespace tarn {
namespace {

template <class Word>
void gather(const Tensor& x, Word* out) {
  const int ndim = x.dim();
  const Word* base = static_cast<const Word*>(x.data());
  const int64_t inner = ndim == 0 ? 1 : x.size(-1);
  const int64_t step = ndim == 0 ? 0 : x.stride(-1);
  Shape index = Shape::filled(ndim, 0);
  for (int64_t done = 0; done < x.numel(); done += inner) {
    int64_t offset = 0;
    for (int d = 0; d + 1 < ndim; ++d) offset += index[d] * x.stride(d);
    for (int64_t i = 0; i < inner; ++i) *out++ = base[offset + i * step];
    for (int d = ndim - 2; d >= 0 && ++index[d] == x.size(d); --d) index[d] = 0;
  }
}

}  // namespace

Tensor host_row_major(const Tensor& x) {
  if (!x.device().is_cpu()) return host_row_major(x.detach().to(kCPU));
  if (x.is_contiguous()) return x;
  Tensor out = empty(x.sizes(), {.dtype = x.dtype()});
  switch (item_size(x.dtype())) {
    case 8:
      gather(x, static_cast<uint64_t*>(out.data()));
      break;
    case 4:
      gather(x, static_cast<uint32_t*>(out.data()));
      break;
    case 2:
      gather(x, static_cast<uint16_t*>(out.data()));
      break;
    default:
      gather(x, static_cast<uint8_t*>(out.data()));
  }
  return out;
}

}  // namespace tarn
