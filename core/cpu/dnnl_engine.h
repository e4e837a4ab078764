// dnnl_engine.h - what every use of oneDNN shares: engine, stream, errors, and the few calls that
// differ between oneDNN 2.x and 3.x. Included only by dnnl_*.cpp.
#pragma once

#if TARN_HAVE_DNNL

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

#include <oneapi/dnnl/dnnl.hpp>

#include "tarn/core/cpu/conv_shape.h"
#include "tarn/core/dtype.h"
#include "tarn/core/error.h"

namespace tarn::cpu {

/// The CPU engine, shared by all threads.
dnnl::engine& dnnl_engine();
/// The calling thread's stream.
dnnl::stream& dnnl_stream();

/// kF32 or kBF16.
inline dnnl::memory::data_type dnnl_type(DType dtype) {
  return dtype == DType::kBF16 ? dnnl::memory::data_type::bf16 : dnnl::memory::data_type::f32;
}

/// Runs f; an error of oneDNN becomes a tarn::Error that names the call and the status.
template <typename F>
decltype(auto) dnnl_checked(const char* call, F&& f) {
  try {
    return f();
  } catch (const dnnl::error& e) {
    detail::fail<Error>("oneDNN ", call, " failed: ", e.what(), " (status ",
                        static_cast<int>(e.status), ")");
  }
}

/// The most recently used values by key; one per thread, so lookups take no lock.
template <typename Key, typename Value, typename Hash>
class DnnlCache {
 public:
  explicit DnnlCache(size_t capacity) : capacity_(capacity) {}

  /// The value of key, made by make() when there is none.
  template <typename Make>
  Value& get(const Key& key, Make make) {
    if (const auto it = index_.find(key); it != index_.end()) {
      order_.splice(order_.begin(), order_, it->second);
      return it->second->second;
    }
    order_.emplace_front(key, make());
    index_[key] = order_.begin();
    if (order_.size() > capacity_) {
      index_.erase(order_.back().first);
      order_.pop_back();
    }
    return order_.front().second;
  }

 private:
  size_t capacity_;
  std::list<std::pair<Key, Value>> order_;
  std::unordered_map<Key, typename std::list<std::pair<Key, Value>>::iterator, Hash> index_;
};

/// Attributes with the scratchpad left to the caller.
dnnl::primitive_attr dnnl_attributes();
/// Appends an activation to post-ops (2.x has a further argument, the scale).
void append_eltwise(dnnl::post_ops& ops, dnnl::algorithm algorithm, float alpha, float beta);

struct DnnlConvDescs {
  dnnl::memory::desc x, weight, bias, y;
  dnnl::memory::dims strides, dilation, padding;
};
dnnl::convolution_forward::primitive_desc conv_forward_desc(const DnnlConvDescs& d);
dnnl::convolution_backward_data::primitive_desc conv_backward_data_desc(const DnnlConvDescs& d);
dnnl::convolution_backward_weights::primitive_desc conv_backward_weights_desc(
    const DnnlConvDescs& d);
dnnl::matmul::primitive_desc matmul_desc(const dnnl::memory::desc& a, const dnnl::memory::desc& b,
                                         const dnnl::memory::desc& bias,
                                         const dnnl::memory::desc& c,
                                         const dnnl::primitive_attr& attributes);

}  // namespace tarn::cpu

#endif  // TARN_HAVE_DNNL
