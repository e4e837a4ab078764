// tensor.h - Tensor: sizes, strides and a dtype over a shared storage.
//
// A Tensor is a counted handle: copying it copies no data, and const means "this handle keeps
// pointing there", not "these numbers stay". The core knows autograd only as one opaque slot.
// The operations that appear as members (x.sum(), x.view()) are recorded on the tape; they are
// defined in autograd/tensor_methods.cpp. tarn::raw::* are the same operations, unrecorded.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tarn/core/device.h"
#include "tarn/core/dtype.h"
#include "tarn/core/shape.h"
#include "tarn/core/storage.h"

namespace tarn {

enum class MemoryFormat : uint8_t { kContiguous, kChannelsLast, kPreserve };

/// What autograd hangs on a tensor (autograd/meta.h). Owned by the tensor.
struct AutogradSlot {
  virtual ~AutogradSlot() = default;
};

/// The shared state behind a Tensor. Library code only.
struct TensorImpl : RefCounted<TensorImpl> {
  Ref<Storage> storage;
  AutogradSlot* autograd = nullptr;
  int64_t offset = 0;  // in elements
  int64_t numel = 1;
  Shape sizes;
  Shape strides;  // in elements
  DType dtype = DType::kF32;
  bool contiguous = true;      // dense, row-major
  bool channels_last = false;  // 4-d, dense NHWC (may hold together with contiguous)
  bool view = false;           // made by a view operation: shares its storage by design
  uint32_t view_taken = 0;     // recorded views: 1 + the storage's recorded writes at that time

  /// Recomputes numel and the layout flags from sizes and strides.
  void update_layout();
  static TensorImpl* make() {
    return new (detail::FreeList<sizeof(TensorImpl)>::take()) TensorImpl;
  }
  static void destroy(TensorImpl* t) {
    t->~TensorImpl();
    detail::FreeList<sizeof(TensorImpl)>::give(t);
  }
  ~TensorImpl() { delete autograd; }
};

namespace detail {
/// Throws the error of a member that was called on an undefined tensor.
[[noreturn, gnu::cold, gnu::noinline]] void fail_undefined(const char* member);
/// Throws ValueError if the memory was given back (Storage::drop_memory); an empty tensor has none.
[[gnu::cold, gnu::noinline]] void check_has_memory(const TensorImpl& tensor);
template <class T>
concept WholeNumber = std::integral<T> && !std::same_as<T, bool>;
}  // namespace detail

class Tensor {
 public:
  /// An undefined tensor: "none", also what std::move leaves behind. Only defined(), assignment,
  /// requires_grad() and printing are allowed on it; everything else throws.
  Tensor() = default;
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}
  /// Wraps sizes, strides and a storage; library code only.
  Tensor(Ref<Storage> storage, const Shape& sizes, const Shape& strides, int64_t offset,
         DType dtype);

  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) = default;
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & = default;
  /// x[0] = y would only point the temporary elsewhere: write x[0].copy_(y).
  Tensor& operator=(const Tensor&) && = delete;

  bool defined() const { return static_cast<bool>(impl_); }
  int dim() const { return at("dim").sizes.dim(); }
  const Shape& sizes() const { return at("sizes").sizes; }
  const Shape& strides() const { return at("strides").strides; }
  /// Size of dimension d; negative d counts from the end. Throws IndexError.
  int64_t size(int64_t d) const {
    const TensorImpl& i = at("size");
    return i.sizes[wrap_dim("size", d, i.sizes.dim())];
  }
  int64_t stride(int64_t d) const {
    const TensorImpl& i = at("stride");
    return i.strides[wrap_dim("stride", d, i.sizes.dim())];
  }
  int64_t numel() const { return at("numel").numel; }
  int64_t storage_offset() const { return at("storage_offset").offset; }
  DType dtype() const { return at("dtype").dtype; }
  Device device() const { return at("device").storage->device(); }
  bool is_contiguous(MemoryFormat format = MemoryFormat::kContiguous) const {
    const TensorImpl& i = at("is_contiguous");
    return format == MemoryFormat::kChannelsLast ? i.channels_last : i.contiguous;
  }
  /// First element. Typed access checks the dtype: x.data<float>().
  void* data() const {
    const TensorImpl& i = at("data");
    char* memory = static_cast<char*>(i.storage->data());
    if (__builtin_expect(!memory, 0)) detail::check_has_memory(i);
    return memory + i.offset * item_size(i.dtype);
  }
  template <class T>
  T* data() const {
    TARN_CHECK_AS(DTypeError, dtype_of<T> == at("data").dtype, "data: the tensor holds ", dtype(),
                  "; asked for ", dtype_of<T>);
    return static_cast<T*>(data());
  }
  /// data(), or nullptr of an undefined tensor: for operands that may be missing.
  void* data_or_null() const { return defined() ? data() : nullptr; }
  template <class T>
  T* data_or_null() const {
    return defined() ? data<T>() : nullptr;
  }
  const Ref<Storage>& storage() const { return at("storage").storage; }
  /// How often the storage was written in place.
  uint32_t version() const { return at("version").storage->version(); }
  void bump_version() const { at("bump_version").storage->bump_version(); }
  /// True if both handles are the same tensor.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }
  const Ref<TensorImpl>& impl() const { return impl_; }
  /// "[2, 3] f32 cpu", as in error messages; "undefined" for none.
  std::string describe() const;
  /// The single element, converted to T. Throws ShapeError unless numel() == 1.
  template <class T = double>
  T item() const {
    return item_scalar().to<T>();
  }
  Scalar item_scalar() const;
  /// All elements in row-major order, converted to T.
  template <class T>
  std::vector<T> to_vector() const;

  // ---- autograd (autograd/tensor_methods.cpp)
  bool requires_grad() const;
  /// Marks a leaf for differentiation. Throws AutogradError on a non-leaf or a non-floating tensor.
  const Tensor& set_requires_grad(bool value = true) const;
  bool is_leaf() const;
  /// The accumulated gradient; undefined if there is none.
  Tensor grad() const;
  void set_grad(const Tensor& grad) const;
  /// Drops the gradient (absent, not zero: optimizers skip the parameter).
  void zero_grad() const;
  /// Keeps the gradient of a non-leaf when backward passes it.
  void retain_grad() const;
  /// Runs backward from this tensor; `gradient` may be omitted for a single element.
  void backward(const Tensor& gradient = {}, bool retain_graph = false,
                bool create_graph = false) const;
  /// The same data without history.
  Tensor detach() const;
  /// Calls `hook` with the gradient of this tensor; a defined return value replaces it. Returns an
  /// id for remove_hook.
  int64_t register_hook(std::function<Tensor(const Tensor&)> hook) const;
  /// Calls `hook` with this leaf after its gradient was accumulated, once per backward.
  int64_t register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;
  void remove_hook(int64_t id) const;
  /// Name of the operation that made this tensor; "" for a leaf.
  std::string grad_fn_name() const;

  // ---- operations, recorded (see autograd/functions.h for what each computes)
  Tensor view(const Shape& sizes) const;
  Tensor reshape(const Shape& sizes) const;
  Tensor flatten(int64_t start = 0, int64_t end = -1) const;
  Tensor transpose(int64_t a, int64_t b) const;
  Tensor t() const;
  Tensor permute(const Shape& dims) const;
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze() const;
  Tensor squeeze(int64_t dim) const;
  Tensor expand(const Shape& sizes) const;
  Tensor select(int64_t dim, int64_t index) const;
  Tensor slice(int64_t dim, int64_t start, int64_t end, int64_t step = 1) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;
  Tensor operator[](int64_t index) const;
  Tensor contiguous(MemoryFormat format = MemoryFormat::kContiguous) const;
  Tensor clone() const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor matmul(const Tensor& other) const;
  Tensor sum() const;
  Tensor sum(const Shape& dims, bool keepdim = false) const;
  Tensor mean() const;
  Tensor mean(const Shape& dims, bool keepdim = false) const;
  /// One dimension without braces: x.sum(1), x.mean(-1, true). Templates, so that sum({}) keeps
  /// meaning all of them.
  template <detail::WholeNumber I>
  Tensor sum(I dim, bool keepdim = false) const {
    return sum(Shape{static_cast<int64_t>(dim)}, keepdim);
  }
  template <detail::WholeNumber I>
  Tensor mean(I dim, bool keepdim = false) const {
    return mean(Shape{static_cast<int64_t>(dim)}, keepdim);
  }
  /// The largest and smallest element.
  Tensor max() const;
  Tensor min() const;
  Tensor softmax(int64_t dim) const;
  Tensor log_softmax(int64_t dim) const;
  Tensor exp() const;
  Tensor log() const;
  Tensor sqrt() const;
  Tensor abs() const;
  Tensor pow(const Scalar& exponent) const;
  Tensor relu() const;
  Tensor sigmoid() const;
  Tensor tanh() const;
  Tensor argmax(int64_t dim) const;
  /// In-place; each returns the tensor itself.
  const Tensor& fill_(const Scalar& value) const;
  const Tensor& zero_() const;
  const Tensor& copy_(const Tensor& source) const;
  const Tensor& add_(const Tensor& other, double alpha = 1) const;
  const Tensor& add_(const Scalar& value) const;
  const Tensor& sub_(const Tensor& other, double alpha = 1) const;
  const Tensor& sub_(const Scalar& value) const;
  const Tensor& mul_(const Tensor& other) const;
  const Tensor& mul_(const Scalar& value) const;
  const Tensor& div_(const Tensor& other) const;
  const Tensor& div_(const Scalar& value) const;
  /// The same as operators: they write into the tensor that all its handles share, as in PyTorch.
  const Tensor& operator+=(const Tensor& other) const { return add_(other); }
  const Tensor& operator+=(const Scalar& value) const { return add_(value); }
  const Tensor& operator-=(const Tensor& other) const { return sub_(other); }
  const Tensor& operator-=(const Scalar& value) const { return sub_(value); }
  const Tensor& operator*=(const Tensor& other) const { return mul_(other); }
  const Tensor& operator*=(const Scalar& value) const { return mul_(value); }
  const Tensor& operator/=(const Tensor& other) const { return div_(other); }
  const Tensor& operator/=(const Scalar& value) const { return div_(value); }

 private:
  /// The state behind a handle that must be defined; `member` is what was called on it.
  TensorImpl& at(const char* member) const {
    if (__builtin_expect(!impl_, 0)) detail::fail_undefined(member);
    return *impl_;
  }

  Ref<TensorImpl> impl_;
};

/// Prints values, shape, dtype and device, as PyTorch lays them out.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace tarn
