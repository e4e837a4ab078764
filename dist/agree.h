// agree.h - whether all ranks hold the same model, and making it so.
#pragma once

#include <string>
#include <vector>

#include "tarn/core/tensor_dict.h"
#include "tarn/dist/group.h"
#include "tarn/nn/module.h"

namespace tarn::dist {

/// Every rank's text, in rank order; lengths may differ.
std::vector<std::string> all_gather_text(ProcessGroup& group, const std::string& text);

/// Which of these flags are set on any rank. Every rank has as many.
std::vector<char> true_on_any_rank(ProcessGroup& group, const std::vector<char>& flags);

/// Throws ValueError, with the same text on all ranks, unless every rank's dict has the same names,
/// sizes and dtypes in the same order; it names the first difference. `what`: "ddp: parameters".
void check_same_layout(ProcessGroup& group, const std::string& what, const TensorDict& tensors);

/// Throws DeviceError that names the first tensor which is not where the first of all is, before
/// any message. `what`: "ddp".
void check_one_device(const std::string& what, const TensorDict& tensors);

/// Throws as check_one_device and check_same_layout unless all ranks have built the same model, on
/// one device each. `who`: "ddp".
void check_same_model(const std::string& who, const nn::Module& module, ProcessGroup& group);

/// Gives all ranks the values of rank `root`, in one message. Tensors that hold them already are
/// not written to, so their version stays.
void broadcast_values(ProcessGroup& group, const std::vector<Tensor>& tensors, int root = 0);

/// Throws DistError, on all ranks, unless the tensors are equal bit for bit everywhere; it names
/// the first that differs and the ranks that differ from rank 0.
void check_same_values(ProcessGroup& group, const std::string& what, const TensorDict& tensors);

}  // namespace tarn::dist
