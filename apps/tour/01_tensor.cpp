// 01_tensor.cpp - a tensor is a block of memory and a way of walking it: sizes, strides, an offset.
#include <iostream>

#include "tarn/apps/tour/wrapped.h"
#include "tarn/autograd/functions.h"
#include "tarn/core/factory.h"

using namespace tarn;

int main() {
  // Twelve numbers in a row, shown as 3 rows of 4. A stride says how far apart neighbours lie in
  // memory: one step down is 4 numbers further, one step right is 1.
  const Tensor x = arange(12).to(DType::kF32).view({3, 4});
  std::cout << "x = " << x << "\nsizes " << x.sizes() << ", strides " << x.strides() << "\n\n";

  // Transposing swaps sizes and strides. No number moves: both share one storage.
  const Tensor xt = x.t();
  std::cout << "x.t(): sizes " << xt.sizes() << ", strides " << xt.strides()
            << (xt.storage() == x.storage() ? ", the same memory\n" : ", a copy\n");

  // A column, every second column, a single row: the same trick with an offset.
  const Tensor column = x.select(1, 2);
  const Tensor every_second = x.slice(1, 0, 4, 2);
  std::cout << "column 2: strides " << column.strides() << ", offset " << column.storage_offset()
            << "\nevery second column: sizes " << every_second.sizes() << ", strides "
            << every_second.strides() << "\n";

  // Expanding uses stride 0: one row, read five times.
  const Tensor wide = x[0].unsqueeze(0).expand({5, 4});
  std::cout << "row 0 five times: sizes " << wide.sizes() << ", strides " << wide.strides() << ", "
            << wide.storage()->bytes() << " bytes behind " << wide.numel() << " elements\n\n";

  // A view cannot always be had: the columns of x are not evenly spaced in memory.
  std::cout << "x.t() is contiguous: " << std::boolalpha << xt.is_contiguous() << "\n";
  try {
    xt.view({12});
  } catch (const ShapeError& e) {
    std::cout << wrapped(e.what()) << "\n";
  }
  std::cout << "reshape copies where it must: " << xt.reshape({12}) << "\n\n";

  // Images are [N, C, H, W] in name, but convolutions are fastest when the channels of a pixel lie
  // side by side. channels_last changes the strides and leaves the sizes.
  const Tensor image = zeros({1, 3, 2, 2});
  const Tensor nhwc = image.contiguous(MemoryFormat::kChannelsLast);
  std::cout << "image strides " << image.strides() << ", channels_last " << nhwc.strides() << "\n";

  // Writing through a view is seen by everybody who shares the memory.
  Tensor y = zeros({2, 3});
  y.select(0, 1).fill_(7);
  std::cout << "after writing row 1 through a view: " << y << ", version " << y.version() << "\n";
  return 0;
}
