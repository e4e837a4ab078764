// intrusive.h - a counted pointer to an object that carries its own count.
//
// Half the size and one allocation less than std::shared_ptr. T derives from RefCounted<T> and may
// define `static void destroy(T*)` to say how it dies (the default is delete).
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace tarn {

template <class T>
class RefCounted {
 public:
  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  /// Retains an object that may be brand new: nobody else sees one without owners, so its first
  /// count needs no atomic read-modify-write.
  void retain_first() const {
    if (refs_.load(std::memory_order_relaxed) == 0) {
      refs_.store(1, std::memory_order_relaxed);
    } else {
      retain();
    }
  }
  void release() const {
    // A sole owner needs no atomic read-modify-write: nobody else can see the object.
    if (refs_.load(std::memory_order_acquire) == 1 ||
        refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      T::destroy(const_cast<T*>(static_cast<const T*>(this)));
    }
  }
  int use_count() const { return refs_.load(std::memory_order_acquire); }
  static void destroy(T* object) { delete object; }

 protected:
  RefCounted() = default;
  ~RefCounted() = default;
  RefCounted(const RefCounted&) {}
  RefCounted& operator=(const RefCounted&) { return *this; }

 private:
  mutable std::atomic<int32_t> refs_{0};
};

template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(std::nullptr_t) {}
  explicit Ref(T* object) : object_(object) {
    if (object_) object_->retain_first();
  }
  Ref(const Ref& other) : object_(other.object_) {
    if (object_) object_->retain();
  }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(const Ref& other) {
    Ref(other).swap(*this);
    return *this;
  }
  Ref& operator=(Ref&& other) noexcept {
    Ref(std::move(other)).swap(*this);
    return *this;
  }
  ~Ref() {
    if (object_) object_->release();
  }
  void swap(Ref& other) noexcept { std::swap(object_, other.object_); }
  /// Gives up ownership without releasing; the caller owns one count.
  T* leak() { return std::exchange(object_, nullptr); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  bool operator==(const Ref& other) const { return object_ == other.object_; }

 private:
  T* object_ = nullptr;
};

}  // namespace tarn
