// cuda_no_driver.cpp - stands in for the CUDA driver where there is none, so that cuDNN makes plans
// for attention.
//
// Those engines are compiled when a plan is made and their code is handed to the driver at once, so
// a libcuda.so.1 must be there. This one takes any code, and has no device. The functions that are
// only named are those that cuDNN 9.19 and its CUDA run time look up.

extern "C" {

constexpr int kSuccess = 0, kNoDevice = 100, kNotFound = 500;

int cuInit(unsigned) {
  return kNoDevice;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  *count = 0;
  return kNoDevice;
}
int cuGetErrorString(int, const char** text) {
  *text = "there is no driver";
  return kSuccess;
}
int cuGetProcAddress_v2(const char*, void** address, int, unsigned long, int* status) {
  *address = nullptr;
  if (status) *status = 1;  // CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
  return kNotFound;
}

// Further arguments of these are not looked at.
int cuLibraryLoadData(void** library) {
  static int code;
  *library = &code;
  return kSuccess;
}
int cuLibraryGetKernel(void** kernel) {
  static int code;
  *kernel = &code;
  return kSuccess;
}
int cuLibraryUnload(void*) {
  return kSuccess;
}

#define TARN_NO_DEVICE(name) \
  int name() {               \
    return kNoDevice;        \
  }
// clang-format off
TARN_NO_DEVICE(cuCtxGetCurrent)
TARN_NO_DEVICE(cuCtxGetDevice)
TARN_NO_DEVICE(cuCtxGetLimit)
TARN_NO_DEVICE(cuCtxPopCurrent)
TARN_NO_DEVICE(cuCtxPushCurrent)
TARN_NO_DEVICE(cuDeviceGet)
TARN_NO_DEVICE(cuDeviceGetAttribute)
TARN_NO_DEVICE(cuDevicePrimaryCtxRelease)
TARN_NO_DEVICE(cuDevicePrimaryCtxReset)
TARN_NO_DEVICE(cuDevicePrimaryCtxRetain)
TARN_NO_DEVICE(cuFuncGetAttribute)
TARN_NO_DEVICE(cuFuncSetAttribute)
TARN_NO_DEVICE(cuGetErrorName)
TARN_NO_DEVICE(cuKernelGetAttribute)
TARN_NO_DEVICE(cuKernelSetAttribute)
TARN_NO_DEVICE(cuLaunchCooperativeKernel)
TARN_NO_DEVICE(cuLaunchKernel)
TARN_NO_DEVICE(cuLaunchKernelEx)
TARN_NO_DEVICE(cuLibraryLoadFromFile)
TARN_NO_DEVICE(cuLinkAddData)
TARN_NO_DEVICE(cuLinkAddData_v2)
TARN_NO_DEVICE(cuLinkAddFile_v2)
TARN_NO_DEVICE(cuLinkComplete)
TARN_NO_DEVICE(cuLinkCreate)
TARN_NO_DEVICE(cuLinkCreate_v2)
TARN_NO_DEVICE(cuLinkDestroy)
TARN_NO_DEVICE(cuMemcpyDtoH_v2)
TARN_NO_DEVICE(cuModuleGetFunction)
TARN_NO_DEVICE(cuModuleGetGlobal_v2)
TARN_NO_DEVICE(cuModuleLoadData)
TARN_NO_DEVICE(cuModuleLoadDataEx)
TARN_NO_DEVICE(cuModuleLoadFatBinary)
TARN_NO_DEVICE(cuModuleUnload)
TARN_NO_DEVICE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
TARN_NO_DEVICE(cuOccupancyMaxPotentialClusterSize)
TARN_NO_DEVICE(cuStreamGetCtx)
TARN_NO_DEVICE(cuStreamSynchronize)
TARN_NO_DEVICE(cuTensorMapEncodeTiled)
// clang-format on
#undef TARN_NO_DEVICE

}  // extern "C"
