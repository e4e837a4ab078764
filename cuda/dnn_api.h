// dnn_api.h - cuDNN's graph calls, loaded at run time, and its descriptors as owned objects.
//
// cuDNN's back-end API is a handful of functions on untyped descriptors: create, set attributes,
// finalize, read attributes, execute. Everything else (which engine, which plan) is data.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <cudnn.h>

#include "tarn/core/error.h"

namespace tarn::cuda {

/// The entry points in use; of the library, or of its stand-in under emulation.
struct DnnApi {
  decltype(cudnnGetVersion)* version = nullptr;
  decltype(cudnnGetErrorString)* error_string = nullptr;
  decltype(cudnnGetLastErrorString)* last_error_string = nullptr;
  decltype(cudnnCreate)* create = nullptr;
  decltype(cudnnSetStream)* set_stream = nullptr;
  decltype(cudnnBackendCreateDescriptor)* create_descriptor = nullptr;
  decltype(cudnnBackendDestroyDescriptor)* destroy_descriptor = nullptr;
  decltype(cudnnBackendSetAttribute)* set_attribute = nullptr;
  decltype(cudnnBackendGetAttribute)* get_attribute = nullptr;
  decltype(cudnnBackendFinalize)* finalize = nullptr;
  decltype(cudnnBackendExecute)* execute = nullptr;
};

/// Null if cuDNN is missing (says so once) or TARN_CUDNN=off. Throws if it is missing and
/// TARN_CUDNN=on.
const DnnApi* dnn_api();

/// "cuda: <call> failed: <name> (<code>): <what cuDNN says of it>".
class DnnError : public DeviceError {
 public:
  DnnError(const std::string& text, cudnnStatus_t status) : DeviceError(text), status_(status) {}
  cudnnStatus_t status() const { return status_; }
  /// cuDNN has no way to do what was asked, as opposed to: something is broken.
  bool not_supported() const { return status_ / 1000 == 3; }
  /// One of the libraries that cuDNN consists of is missing, or of another version.
  bool incomplete() const {
    return status_ == CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH ||
           status_ == CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED;
  }
  /// It found no memory for its own needs.
  bool out_of_memory() const {
    return status_ == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED ||
           status_ == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
  }
  /// An argument that cuDNN does not take.
  bool bad_parameter() const { return status_ / 1000 == 2; }
  /// One proposal of the heuristics is of no use here; another may be.
  bool says_try_another() const {
    return not_supported() || bad_parameter() ||
           status_ == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
  }

 private:
  cudnnStatus_t status_;
};

/// Throws DnnError unless the call succeeded.
void dnn_check(cudnnStatus_t status, const char* call);

/// One descriptor. Attributes are set in any order, finalize() makes it final; cuDNN reads those it
/// refers to, so they are kept alive beside it.
class DnnDescriptor {
 public:
  /// `name` stands in error messages: "cudnnBackendFinalize(<name>)".
  DnnDescriptor(cudnnBackendDescriptorType_t type, const char* name);
  ~DnnDescriptor();
  DnnDescriptor(DnnDescriptor&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), name_(other.name_) {}
  DnnDescriptor& operator=(DnnDescriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(name_, other.name_);
    return *this;
  }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  void set(cudnnBackendAttributeName_t name, int64_t value) {
    set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, std::initializer_list<int64_t> values) {
    set(name, CUDNN_TYPE_INT64, static_cast<int64_t>(values.size()), values.begin());
  }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const DnnDescriptor& value) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.handle_);
  }
  void set(cudnnBackendAttributeName_t name, cudnnHandle_t value) {
    set(name, CUDNN_TYPE_HANDLE, 1, &value);
  }
  void finalize();

  /// How many values of an attribute there are, and the first of them up to the span's size.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t most,
              void* values) const;
  int64_t get_int(cudnnBackendAttributeName_t name) const;

  cudnnBackendDescriptor_t handle() const { return handle_; }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
  const char* name_;
};

}  // namespace tarn::cuda
