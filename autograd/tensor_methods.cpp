// tensor_methods.cpp - the members of Tensor that go on the tape, by way of the free functions.
#include <algorithm>
#include <atomic>

#include "tarn/autograd/engine.h"
#include "tarn/autograd/functions.h"
#include "tarn/autograd/operand.h"
#include "tarn/autograd/record.h"
#include "tarn/core/factory.h"
#include "tarn/core/number_check.h"
#include "tarn/core/raw_elementwise.h"
#include "tarn/core/views.h"

namespace tarn {
namespace {
std::atomic<int64_t> next_hook_id{1};
}  // namespace

bool Tensor::requires_grad() const {
  return tarn::requires_grad(*this);
}

bool Tensor::is_leaf() const {
  at("is_leaf");
  const AutogradMeta* meta = meta_of(*this);
  return !meta || !meta->grad_fn;
}

const Tensor& Tensor::set_requires_grad(bool value) const {
  at("set_requires_grad");
  TARN_CHECK_AS(AutogradError, is_leaf(),
                "set_requires_grad: only leaves can be switched; got the result of ",
                grad_fn_name(), "; use detach() to cut it off");
  TARN_CHECK_AS(DTypeError, !value || is_floating(dtype()),
                "set_requires_grad: only floating tensors can require grad; got ", describe());
  if (value || impl_->autograd) ensure_meta(*this).requires_grad = value;
  return *this;
}

Tensor Tensor::grad() const {
  at("grad");
  const AutogradMeta* meta = meta_of(*this);
  if (!meta) return {};
  return meta->retained ? *meta->retained : meta->grad;
}

void Tensor::set_grad(const Tensor& grad) const {
  at("set_grad");
  if (grad.defined()) {
    TARN_CHECK_AS(ShapeError, grad.sizes() == sizes() && grad.dtype() == dtype(),
                  "set_grad: the gradient must have the tensor's sizes and dtype; got ",
                  grad.describe(), " for ", describe());
    TARN_CHECK_AS(DeviceError, grad.device() == device(),
                  "set_grad: the gradient must be on the tensor's device; got ", grad.describe(),
                  " for ", describe());
  }
  ensure_meta(*this).grad = grad;
}

void Tensor::zero_grad() const {
  at("zero_grad");
  if (AutogradMeta* meta = meta_of(*this)) {
    meta->grad = Tensor();
    if (meta->retained) *meta->retained = Tensor();
  }
}

void Tensor::retain_grad() const {
  TARN_CHECK_AS(AutogradError, requires_grad(),
                "retain_grad: the tensor does not require grad; got ", describe());
  AutogradMeta& meta = *meta_of(*this);
  if (!meta.grad_fn || meta.retained) return;
  meta.retained = std::make_shared<Tensor>();
  meta.grad_fn->extras().hooks.push_back(
      {kRetainHook, meta.output, [box = meta.retained](const Tensor& g) {
         *box = box->defined() ? tarn::add(*box, g) : g;
         return Tensor();
       }});
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  tarn::backward({this, 1}, {&gradient, 1}, {retain_graph, create_graph});
}

Tensor Tensor::detach() const {
  at("detach");
  return raw::alias(*this);
}

int64_t Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  TARN_CHECK_AS(ValueError, static_cast<bool>(hook), "register_hook: a function is needed");
  const Edge edge = gradient_edge(*this);
  TARN_CHECK_AS(AutogradError, static_cast<bool>(edge.node),
                "register_hook: the tensor does not require grad; got ", describe());
  const int64_t id = next_hook_id++;
  auto& hooks = edge.node->extras().hooks;
  const auto retaining =
      std::find_if(hooks.begin(), hooks.end(), [](const auto& h) { return h.id == kRetainHook; });
  hooks.insert(retaining, {id, edge.output, std::move(hook)});
  auto& hooked = meta_of(*this)->hooked;
  if (!hooked) hooked = std::make_unique<std::vector<std::pair<int64_t, Ref<Node>>>>();
  hooked->emplace_back(id, edge.node);
  return id;
}

int64_t Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  TARN_CHECK_AS(ValueError, static_cast<bool>(hook),
                "register_post_accumulate_grad_hook: a function is needed");
  TARN_CHECK_AS(AutogradError, requires_grad() && is_leaf(),
                "register_post_accumulate_grad_hook: needs a leaf that requires grad; got ",
                describe());
  const int64_t id = next_hook_id++;
  meta_of(*this)->post_hooks.emplace_back(id, std::move(hook));
  return id;
}

void Tensor::remove_hook(int64_t id) const {
  at("remove_hook");
  AutogradMeta* meta = meta_of(*this);
  if (!meta) return;
  std::erase_if(meta->post_hooks, [id](const auto& hook) { return hook.first == id; });
  if (!meta->hooked) return;
  std::erase_if(*meta->hooked, [id](const auto& entry) {
    if (entry.first != id) return false;
    std::erase_if(entry.second->extras().hooks, [id](const auto& hook) { return hook.id == id; });
    return true;
  });
}

std::string Tensor::grad_fn_name() const {
  at("grad_fn_name");
  const AutogradMeta* meta = meta_of(*this);
  return meta && meta->grad_fn ? meta->grad_fn->name() : "";
}

Tensor Tensor::view(const Shape& sizes) const {
  return tarn::view(*this, sizes);
}
Tensor Tensor::reshape(const Shape& sizes) const {
  return tarn::reshape(*this, sizes);
}
Tensor Tensor::flatten(int64_t start, int64_t end) const {
  return tarn::flatten(*this, start, end);
}
Tensor Tensor::transpose(int64_t a, int64_t b) const {
  return tarn::transpose(*this, a, b);
}
Tensor Tensor::t() const {
  return tarn::t(*this);
}
Tensor Tensor::permute(const Shape& dims) const {
  return tarn::permute(*this, dims);
}
Tensor Tensor::unsqueeze(int64_t dim) const {
  return tarn::unsqueeze(*this, dim);
}
Tensor Tensor::squeeze() const {
  return tarn::squeeze(*this);
}
Tensor Tensor::squeeze(int64_t dim) const {
  return tarn::squeeze(*this, dim);
}
Tensor Tensor::expand(const Shape& sizes) const {
  return tarn::expand(*this, sizes);
}
Tensor Tensor::select(int64_t dim, int64_t index) const {
  return tarn::select(*this, dim, index);
}
Tensor Tensor::slice(int64_t dim, int64_t start, int64_t end, int64_t step) const {
  return tarn::slice(*this, dim, start, end, step);
}
Tensor Tensor::narrow(int64_t dim, int64_t start, int64_t length) const {
  return tarn::narrow(*this, dim, start, length);
}
Tensor Tensor::operator[](int64_t index) const {
  return tarn::select(*this, 0, index);
}
Tensor Tensor::contiguous(MemoryFormat format) const {
  return tarn::contiguous(*this, format);
}
Tensor Tensor::clone() const {
  return tarn::clone(*this);
}
Tensor Tensor::to(DType dtype) const {
  return tarn::to(*this, dtype);
}
Tensor Tensor::to(Device device) const {
  return tarn::to(*this, device);
}
Tensor Tensor::matmul(const Tensor& other) const {
  return tarn::matmul(*this, other);
}
Tensor Tensor::exp() const {
  return tarn::exp(*this);
}
Tensor Tensor::log() const {
  return tarn::log(*this);
}
Tensor Tensor::sqrt() const {
  return tarn::sqrt(*this);
}
Tensor Tensor::abs() const {
  return tarn::abs(*this);
}
Tensor Tensor::pow(const Scalar& exponent) const {
  return tarn::pow(*this, exponent);
}
Tensor Tensor::relu() const {
  return tarn::relu(*this);
}
Tensor Tensor::sigmoid() const {
  return tarn::sigmoid(*this);
}
Tensor Tensor::tanh() const {
  return tarn::tanh(*this);
}

// In-place: checked, computed, and the tensor's history replaced by the operation's.
namespace {
void overwrite(const char* op, const Tensor& x, const Scalar& value) {
  begin_inplace(op, x);
  check_number_fits(op, value, x.dtype());
  raw::fill_(x, value, op);
  if (!tarn::requires_grad(x)) return;
  record(op, x, {x}, save(),
         [](const Saved&, const Tensor& g, Wants) { return Grads(zeros_like(g)); });
}
}  // namespace

const Tensor& Tensor::fill_(const Scalar& value) const {
  overwrite("fill_", *this, value);
  return *this;
}
const Tensor& Tensor::zero_() const {
  overwrite("zero_", *this, 0);
  return *this;
}
const Tensor& Tensor::copy_(const Tensor& source) const {
  tarn::copy_(*this, source);
  return *this;
}

namespace {
struct Target {
  Shape sizes;
  DType dtype;
  explicit Target(const Tensor& x) : sizes(x.sizes()), dtype(x.dtype()) {}
  Tensor reduce(const Tensor& g) const { return sum_to_size(to(g, dtype), sizes); }
};
}  // namespace

const Tensor& Tensor::add_(const Tensor& other, double alpha) const {
  if (alpha != 1 && defined()) return add_(detail::scaled("add_", *this, other, alpha));
  const Tensor term = before_write(*this, other);
  begin_inplace("add_", *this, other);
  raw::add_(*this, term);
  record("add_", *this, {*this, term}, save(),
         [t = Target(other)](const Saved&, const Tensor& g, Wants w) {
           return Grads(g, w[1] ? t.reduce(g) : Tensor());
         });
  return *this;
}
const Tensor& Tensor::add_(const Scalar& value) const {
  begin_inplace("add_", *this);
  raw::binary_(BinaryOp::kAdd, *this, value);
  record("add_", *this, {*this}, save(),
         [](const Saved&, const Tensor& g, Wants) { return Grads(g); });
  return *this;
}
const Tensor& Tensor::sub_(const Tensor& other, double alpha) const {
  if (alpha != 1 && defined()) return sub_(detail::scaled("sub_", *this, other, alpha));
  const Tensor term = before_write(*this, other);
  begin_inplace("sub_", *this, other);
  raw::sub_(*this, term);
  record("sub_", *this, {*this, term}, save(),
         [t = Target(other)](const Saved&, const Tensor& g, Wants w) {
           return Grads(g, w[1] ? t.reduce(tarn::neg(g)) : Tensor());
         });
  return *this;
}
const Tensor& Tensor::sub_(const Scalar& value) const {
  begin_inplace("sub_", *this);
  raw::binary_(BinaryOp::kSub, *this, value);
  record("sub_", *this, {*this}, save(),
         [](const Saved&, const Tensor& g, Wants) { return Grads(g); });
  return *this;
}
const Tensor& Tensor::mul_(const Tensor& other) const {
  const Tensor factor = before_write(*this, other);
  // The old values are needed only for the gradient of `other`.
  const Tensor old = will_record(other) ? tarn::clone(*this) : Tensor();
  begin_inplace("mul_", *this, other);
  raw::mul_(*this, factor);
  record("mul_", *this, {*this, factor}, save(factor, old),
         [x = Target(*this), t = Target(other)](const Saved& s, const Tensor& g, Wants w) {
           return Grads(w[0] ? x.reduce(tarn::mul(g, s[0])) : Tensor(),
                        w[1] ? t.reduce(tarn::mul(g, s[1])) : Tensor());
         });
  return *this;
}
const Tensor& Tensor::mul_(const Scalar& value) const {
  begin_inplace("mul_", *this);
  raw::mul_(*this, value);
  record("mul_", *this, {*this}, save(),
         [v = value.to_double()](const Saved&, const Tensor& g, Wants) {
           return Grads(tarn::mul(g, v));
         });
  return *this;
}
const Tensor& Tensor::div_(const Tensor& other) const {
  const Tensor divisor = before_write(*this, other);
  const Tensor old = will_record(other) ? tarn::clone(*this) : Tensor();
  begin_inplace("div_", *this, other);
  raw::div_(*this, divisor);
  record("div_", *this, {*this, divisor}, save(divisor, old),
         [x = Target(*this), t = Target(other)](const Saved& s, const Tensor& g, Wants w) {
           const Tensor scaled = tarn::div(g, s[0]);
           return Grads(
               w[0] ? x.reduce(scaled) : Tensor(),
               w[1] ? t.reduce(tarn::neg(tarn::mul(scaled, tarn::div(s[1], s[0])))) : Tensor());
         });
  return *this;
}
const Tensor& Tensor::div_(const Scalar& value) const {
  begin_inplace("div_", *this);
  raw::binary_(BinaryOp::kDiv, *this, value);
  record("div_", *this, {*this}, save(),
         [v = value.to_double()](const Saved&, const Tensor& g, Wants) {
           return Grads(tarn::div(g, v));
         });
  return *this;
}

}  // namespace tarn
