// dnn_api.cpp - opens cuDNN, checks its calls.
#if TARN_HAVE_CUDNN

#include "tarn/cuda/dnn_api.h"

#include "tarn/cuda/library.h"
#include "tarn/cuda/rt.h"

namespace tarn::cuda {
namespace {

// Of the toolkit that this build is for.
std::string soname(const char* stem) {
  return tarn::detail::concat(stem, ".so.", CUDART_VERSION / 1000);
}

const DnnApi* open_library() {
  Library library(
      {.name = "cuDNN",
       .files = {"libcudnn.so.9"},
       .variable = "TARN_CUDNN",
       .without = "convolutions and attention run on tarn's own kernels, many times slower",
       .needs = {soname("libcublasLt"), soname("libnvrtc")}});
  auto* api = new DnnApi;
  library.bind(api->version, "cudnnGetVersion");
  library.bind(api->error_string, "cudnnGetErrorString");
  library.bind(api->last_error_string, "cudnnGetLastErrorString");
  library.bind(api->create, "cudnnCreate");
  library.bind(api->set_stream, "cudnnSetStream");
  library.bind(api->create_descriptor, "cudnnBackendCreateDescriptor");
  library.bind(api->destroy_descriptor, "cudnnBackendDestroyDescriptor");
  library.bind(api->set_attribute, "cudnnBackendSetAttribute");
  library.bind(api->get_attribute, "cudnnBackendGetAttribute");
  library.bind(api->finalize, "cudnnBackendFinalize");
  library.bind(api->execute, "cudnnBackendExecute");
  return library.usable() ? api : nullptr;
}

}  // namespace

const DnnApi* dnn_api() {
  static const DnnApi* api = open_library();
  return api;
}

void dnn_check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char said[1024] = "";
  dnn_api()->last_error_string(said, sizeof said);
  std::string reason = said;
  while (!reason.empty() && reason.back() == '\n') reason.pop_back();
  throw DnnError(
      tarn::detail::concat("cuda: ", call, " failed: ", dnn_api()->error_string(status), " (",
                           static_cast<int>(status), ")", reason.empty() ? "" : ": ", reason),
      status);
}

DnnDescriptor::DnnDescriptor(cudnnBackendDescriptorType_t type, const char* name) : name_(name) {
  dnn_check(dnn_api()->create_descriptor(type, &handle_), "cudnnBackendCreateDescriptor");
}

DnnDescriptor::~DnnDescriptor() {
  if (handle_) dnn_api()->destroy_descriptor(handle_);
}

void DnnDescriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        int64_t count, const void* values) {
  const cudnnStatus_t status = dnn_api()->set_attribute(handle_, name, type, count, values);
  if (status == CUDNN_STATUS_SUCCESS) return;
  dnn_check(status, tarn::detail::concat("cudnnBackendSetAttribute(", name_, ", ",
                                         static_cast<int>(name), ")")
                        .c_str());
}

void DnnDescriptor::finalize() {
  const cudnnStatus_t status = dnn_api()->finalize(handle_);
  if (status == CUDNN_STATUS_SUCCESS) return;
  dnn_check(status, tarn::detail::concat("cudnnBackendFinalize(", name_, ")").c_str());
}

int64_t DnnDescriptor::get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                           int64_t most, void* values) const {
  int64_t count = 0;
  const cudnnStatus_t status = dnn_api()->get_attribute(handle_, name, type, most, &count, values);
  if (status == CUDNN_STATUS_SUCCESS) return count;
  dnn_check(status, tarn::detail::concat("cudnnBackendGetAttribute(", name_, ", ",
                                         static_cast<int>(name), ")")
                        .c_str());
  return 0;
}

int64_t DnnDescriptor::get_int(cudnnBackendAttributeName_t name) const {
  int64_t value = 0;
  get(name, CUDNN_TYPE_INT64, 1, &value);
  return value;
}

}  // namespace tarn::cuda

#endif  // TARN_HAVE_CUDNN
